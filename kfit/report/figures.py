"""The figures of a `fit`: what took the time, and how much of its work counts."""

from __future__ import annotations

from dataclasses import dataclass, field

PHASES = (
    "building",
    "tracing",
    "input",
    "steps",
    "exchange",
    "validation",
    "saving",
    "callbacks",
    "resuming",
    "rest",
)
"""The phases of a `fit`, in the order of a report."""

OF_A_CALL = "overhead of a graph call"
"""The part of a step that all steps of a graph call share."""


@dataclass(frozen=True)
class Figures:
    """What took the time of a `fit`, and how much of its work counts.

    On several workers, the numbers of steps and examples are
    those of the whole cluster, and the times are those of the task that makes the report.

    Attributes:
        phases: The seconds of each phase; their sum is `seconds`.

            - "building": arguments are checked, and the model and its variables are prepared;
            - "tracing": steps are traced and compiled, with the first run of each graph;
            - "input": training waits for data;
            - "steps": steps run, with the exchange of gradients between tasks;
            - "exchange": the task waits for other tasks between two steps;
            - "validation": everything that validations take, with the state that is kept before
              each to be saved if training stops in it;
            - "saving": callbacks save the training; the time that training waits for them;
            - "callbacks": hooks of callbacks run, the progress bar's among them;
            - "resuming": a snapshot is looked for and restored, and data is skipped;
            - "rest": kfit's own code between the others.
        seconds: The seconds since `fit` was called, or that it has taken.
        hooks: The seconds in each hook of callbacks, by name; they are the phase "callbacks".
        steps: The number of steps that this call of `fit` has taken.
        examples: The number of examples of these steps; None if it is not known.
        examples_in_tracing: The number of those examples that were seen in the phase "tracing",
            which has the first run of each graph; 0 if `examples` is None.
        seconds_to_first_step: The seconds from the call of `fit` to the end of the first graph call
            of steps; None if there was none.
        first_input: The seconds of the phase "input" until then, in which pipelines are made, and
            buffers are filled.
        exchange_in_steps: The seconds of exchanges between tasks within steps. They may overlap
            with computation, and are a part of the phase "steps". None if they are not measured.
        num_replicas: The number of replicas, on all tasks.
        num_tasks: The number of tasks.
        total_steps: The number of steps that count, since the training first began.
        total_examples: The number of examples of these steps; None if it is not known.
        expected_examples: The number of examples of all epochs; None if it is not known.
        total_seconds: The seconds since the training first began, with the time in which it did
            not run.
        goodput: The share of `total_seconds` that went into steps that count.
        restarts: How often the training was started again and resumed.
        restores: How often a snapshot was restored, also by `RollBack`.
        steps_again: The number of steps that were lost, and done again. None if it is not known:
            after a restart only `kfit run` knows how many steps were lost.
        snapshots: The number of snapshots written by this call.
        snapshot_bytes: The size of these snapshots in bytes.
        snapshot_seconds: The seconds of writing them, in the background.
        snapshot_wait: The seconds that training waited for them.
        saves_as_allowed: Whether snapshots are saved as often as a share of the time allows
            (`save_freq="auto"`).
        in_memory: Whether the data is arrays in memory, so that waiting for it is no sign of a slow
            input pipeline.
        single_steps: The callbacks, by class, for which each step was a graph call of its own.
        step_parts: The seconds of each part of one step, measured after the training by
            `fit(..., profile=True)`; otherwise empty.
    """

    phases: dict[str, float]
    seconds: float
    hooks: dict[str, float]
    steps: int
    examples: int | None
    examples_in_tracing: int
    seconds_to_first_step: float | None
    first_input: float
    exchange_in_steps: float | None
    num_replicas: int
    num_tasks: int
    total_steps: int
    total_examples: int | None
    expected_examples: int | None
    total_seconds: float
    goodput: float
    restarts: int
    restores: int
    steps_again: int | None
    snapshots: int
    snapshot_bytes: int
    snapshot_seconds: float
    snapshot_wait: float
    saves_as_allowed: bool = False
    in_memory: bool = False
    single_steps: tuple[str, ...] = ()
    step_parts: dict[str, float] = field(default_factory=dict)

    @property
    def examples_per_second(self) -> float | None:
        """The number of examples without `examples_in_tracing`, by `seconds_of_training`.

        None if it is not known, such as after a `fit` whose steps were all taken in the first run
        of a graph.
        """
        lasted = self.seconds_of_training
        if self.examples is None or lasted <= 0:
            return None
        return (self.examples - self.examples_in_tracing) / lasted or None

    @property
    def seconds_of_training(self) -> float:
        """The seconds without building, tracing and resuming, and without the first input."""
        before = sum(self.phases[name] for name in ("building", "tracing", "resuming"))
        return self.seconds - before - self.first_input

    @property
    def examples_per_second_per_replica(self) -> float | None:
        """`examples_per_second` by the number of replicas."""
        speed = self.examples_per_second
        return None if speed is None else speed / self.num_replicas
