"""Starts the workers of `kfit.launch` on Ray, and lets the supervisor control them.

The supervisor decides whether workers are stopped and restarted. It runs in the process that has
called `kfit.launch`, as it does without Ray. On a node of Ray's cluster, each worker is the child
process of a Ray actor, its agent (`ray_actor.py`). This module passes the supervisor's commands to
the agents, and polls the agents for the workers' output, heartbeats (reports of progress) and
exits.

`RayBackend` reserves the workers' resources, as a placement group of Ray, until the launch ends.
`RayTasks` starts the workers of one attempt. After a failure the supervisor may start a new
attempt, with new agents in the same placement group. Ray replaces lost nodes of the group if it
can.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kfit.cluster import secret
from kfit.cluster.cluster import Cluster, Task
from kfit.cluster.resolvers import start_timeout_of
from kfit.heartbeat import Pulse, Reached, TaskError
from kfit.remote.call_files import CallFiles, Settings
from kfit.remote.launch_error import LaunchError
from kfit.remote.resources import WorkerResources
from kfit.supervisor.backend import Backend, Start
from kfit.supervisor.local import thread_limits
from kfit.supervisor.output import Output
from kfit.supervisor.process_group import TaskExit
from kfit.supervisor.reaper import Reaper

# Seconds between two polls of the agents.
_ROUND = 0.2
# Seconds that an agent has to kill its worker, before the agent itself is killed.
_PATIENCE = 3.0
# Variables that the workers take over from this process; the others are those of their nodes.
_CARRIED = ("KFIT_SEED", "KFIT_START_TIMEOUT", "TF_CPP_MIN_LOG_LEVEL")


@dataclass(frozen=True)
class TaskLost(TaskExit):
    """The exit of a worker that was lost with its Ray actor or node, or could not be started.

    Attributes:
        reason: What has happened, as a text for the user.
    """

    reason: str = ""

    @property
    def hint(self) -> str:
        """The text that error messages append as a possible reason; empty, as `reason` has it."""
        return ""

    def __str__(self) -> str:
        return f"{self.name} was lost: {self.reason}"


class RayBackend(Backend):
    """The part of a launch that starts its workers on the nodes of a Ray cluster.

    The supervisor of the launch calls `opened`.

    Args:
        call_files: The files, on this host, to which results and errors of the workers are written.
        settings: What each worker must know before it calls the function.
        call: The launched function with its arguments, pickled.
        workers: The number of workers.
        worker_resources: The resources that each worker requests from Ray, and how workers are
            placed.
        variables: Environment variables that the user sets for all workers.

    Raises:
        ImportError: If Ray is not installed.
        ClusterError: If KFIT_START_TIMEOUT is not a number of seconds above 0.
    """

    def __init__(
        self,
        call_files: CallFiles,
        settings: Settings,
        call: bytes,
        workers: int,
        worker_resources: WorkerResources,
        variables: Mapping[str, str],
    ) -> None:
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "`on` is 'ray', but Ray is not installed here; install it with "
                "`pip install '.[ray]'` from a copy of kfit's repository, or launch on='local'"
            ) from error
        self.call_files = call_files
        self.settings = settings
        self.call = call
        self.bundles = [worker_resources.bundle() for _ in range(workers)]
        self._placement = worker_resources.placement or "PACK"
        carried = {name: os.environ[name] for name in _CARRIED if name in os.environ}
        threads = thread_limits(int(self.bundles[0].get("CPU", 1)))
        self.variables = {**threads, **carried, **variables}
        self.start_timeout = start_timeout_of(self.variables)

    @contextmanager
    def opened(self, output: Output, on_exit: Callable[[TaskExit], None]) -> Iterator[Start]:
        """Context in which Ray reserves the resources of the workers of a launch.

        On entry, this process is connected to Ray if necessary. When the context ends, the
        resources are released, which ends all workers.

        Args:
            output: The object that prints the workers' lines.
            on_exit: A function that is called when a worker has ended, with how it ended.

        Yields:
            A function that starts all workers for one attempt (`Start`). The supervisor calls it
            once at first, and again for each restart of the workers.

        Raises:
            LaunchError: If Ray cannot reserve the resources within the number of seconds that the
                environment variable KFIT_START_TIMEOUT sets, by default 60.
        """
        import ray

        is_guest = ray.is_initialized()
        if not is_guest:
            ray.init()
        try:
            # The reaper removes the folder of this launch if this process is killed.
            with Reaper(str(self.call_files.folder)):
                group = ray.util.placement_group(self.bundles, strategy=self._placement)
                try:
                    if not group.wait(self.start_timeout):
                        raise LaunchError(self._no_room(ray), summary="Ray has no room")
                    call = ray.put(self.call)
                    yield lambda number, identified: RayTasks(
                        self, group, call, number, identified, output, on_exit
                    )
                finally:
                    # This ends the agents, and with them the workers.
                    ray.util.remove_placement_group(group)
        finally:
            if not is_guest:
                ray.shutdown()

    def _no_room(self, ray: Any) -> str:
        return (
            f"Ray found no room for {len(self.bundles)} worker(s) of {self.bundles[0]} each "
            f"({self._placement}) within {self.start_timeout:g} s; its cluster has "
            f"{_amounts(ray.cluster_resources())}, of which these are free: "
            f"{_amounts(ray.available_resources())}. Request less (`workers`, `cpus`, `gpus` or "
            "`resources`), or wait longer (`start_timeout`)"
        )


class RayTasks:
    """The workers of one attempt of a launch on Ray; a restart makes a new such object.

    Each worker has an agent: a Ray actor that starts the worker on its node and reports on it. A
    thread of this object starts the workers and polls the agents, so that the supervisor's thread
    can always handle signals.

    Args:
        backend: The backend, with the settings that are the same for all attempts.
        group: The placement group, in which Ray has reserved the resources of the workers.
        call: Ray's reference to the pickled call, which was stored for all agents.
        number: The number of the attempt, from 0.
        identified: A function that adds the variables that identify the run and the attempt, such
            as KFIT_RUN, to the environment variables of a worker.
        output: The object that prints the workers' lines.
        on_exit: A function that is called when a worker has ended, with how it ended. It is called
            in the thread of this object.
    """

    def __init__(
        self,
        backend: RayBackend,
        group: Any,
        call: Any,
        number: int,
        identified: Callable[[Mapping[str, str]], dict[str, str]],
        output: Output,
        on_exit: Callable[[TaskExit], None],
    ) -> None:
        self._backend = backend
        self._group = group
        self._call = call
        self._number = number
        self._identified = identified
        self._output = output
        self._on_exit = on_exit
        self._tasks = [Task("worker", index) for index in range(len(backend.bundles))]
        self.names = [str(task) for task in self._tasks]
        """The names of all workers, such as "worker 0"."""
        self.dispensable: list[str] = []
        self.servers: list[str] = []
        self._agents: dict[str, Any] = {}
        self._running = set(self.names)
        self._pulses: dict[str, Pulse] = {}
        self._stopped: set[str] = set()
        self._reached: dict[str, Reached] = {}
        self._errors: dict[str, TaskError] = {}
        self._tails: dict[str, Sequence[str]] = {name: deque(maxlen=20) for name in self.names}
        self._stop_notes: dict[str, str] = {}
        self._is_up = False
        # The first signal that was sent before all workers had started.
        self._early: int | None = None
        self._killed_at: float | None = None
        backend.call_files.forget_result()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def signal(self, signum: int, names: Collection[str] | None = None) -> None:
        """Sends a signal to all running workers.

        If not all workers have started yet, the signal is stored, and the start is given up: the
        supervisor is told that the signal ended the workers. If the last worker has just started,
        all workers get the signal instead.

        Args:
            signum: The number of the signal.
            names: Not used: on Ray there are no servers, so a signal is always for all workers.
        """
        if not self._is_up:
            self._early = self._early or signum
        self._tell("signal", signum)

    def kill(self) -> None:
        """Kills all running workers, also those that are just being started.

        Each worker is killed by its agent, the Ray actor that has started it. If this takes longer
        than a few seconds, Ray kills the agent with the worker.
        """
        self._early = self._early or signal.SIGKILL
        self._killed_at = self._killed_at or time.monotonic()
        self._tell("kill")

    def dump_stacks(self, names: Sequence[str]) -> None:
        """Makes the named workers write the stacks of their threads to stderr, one after another.

        The supervisor calls it before it kills a worker that hangs.
        """
        import ray

        for name in names:
            if name in self._agents:
                ray.wait([self._agents[name].dump_stacks.remote()], timeout=_PATIENCE)

    def drain(self) -> None:
        """Waits until the output of all ended workers is printed, but at most a few seconds."""
        self._thread.join(_PATIENCE)

    def confirm_ends(self) -> None:
        """Makes the ends of the workers' trainings count, since all workers have succeeded."""
        import ray

        calls = [agent.confirm_ends.remote() for agent in self._agents.values()]
        ray.wait(calls, num_returns=len(calls), timeout=_PATIENCE)

    def close(self) -> None:
        """Kills the Ray actors that have started the workers, after all workers have ended."""
        import ray

        for agent in self._agents.values():
            ray.kill(agent)

    def error(self, name: str) -> TaskError | None:
        """Returns the error that a worker has recorded; None if there is none.

        The result is also None as long as the worker runs.
        """
        return self._errors.get(name)

    def stop_note(self, name: str) -> str:
        """Returns what a worker has saved when a signal stopped it; empty if it told nothing."""
        return self._stop_notes.get(name, "")

    def tail(self, name: str) -> list[str]:
        """Returns the last lines that a worker wrote to its stderr; empty until it has ended."""
        return list(self._tails[name])

    def reached(self, name: str) -> Reached:
        """Returns the last training step that a worker has reported, and of which `fit`."""
        return self._reached.get(name) or self._pulses.get(name, Pulse()).reached

    def pulses(self) -> dict[str, Pulse]:
        """Returns the last known heartbeat of each running worker, by the worker's name.

        A heartbeat says what a worker is doing and how far it is. By the heartbeats the supervisor
        detects workers that hang. Workers of which no heartbeat was received are left out.
        """
        return {name: self._pulses[name] for name in tuple(self._running) if name in self._pulses}

    def stopped(self) -> list[str]:
        """Returns the names of the workers that a signal such as SIGSTOP has suspended."""
        return [name for name in tuple(self._running) if name in self._stopped]

    def _tell(self, method: str, *args: Any) -> None:
        for name in self._running & self._agents.keys():
            getattr(self._agents[name], method).remote(*args)

    def _live(self) -> None:
        """Starts the workers, and follows them until the last one has ended.

        It runs in the thread of this object. It raises nothing: if it fails, it reports that all
        workers that still run have ended, since the supervisor waits for the end of each.
        """
        try:
            self._come_up()
            self._is_up = True
            if self._early is not None:
                self._tell("signal", self._early)
            self._follow()
        except _AgentLostError as lost:
            # The supervisor regards the first exit as the cause of the failure.
            for name in [lost.name, *sorted(self._running - {lost.name})]:
                self._end(self._exit_of(name, lost.error))
        except Exception as error:  # any error: the supervisor waits for the exit of each worker
            for name in sorted(self._running):
                self._end(self._exit_of(name, error))

    def _exit_of(self, name: str, error: Exception) -> TaskExit:
        if self._early is not None:
            return TaskExit(name, -self._early)
        return TaskLost(name, -signal.SIGKILL, _reason(error))

    def _come_up(self) -> None:
        """Starts the workers, each by a Ray actor that is created on the worker's node."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from kfit.remote.ray_actor import Agent

        actor = ray.remote(Agent)
        for index, (name, bundle) in enumerate(zip(self.names, self._backend.bundles, strict=True)):
            named = {key: value for key, value in bundle.items() if key not in ("CPU", "GPU")}
            self._agents[name] = actor.options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                resources=named,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=index
                ),
            ).remote(name)
        hosts = self._all("host")
        environments = self._environments(self._addresses(hosts))
        self._all("start", self._number, self._backend.settings, self._call, each=environments)

    def _addresses(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Returns the address at which each worker will listen for the other workers.

        Args:
            hosts: The host of each worker.

        Returns:
            `host:port` of each worker, with a port that is free on its host now.
        """
        import ray

        # One agent per node chooses the ports of all workers there, so that no port is used twice.
        chosen = {}
        for host, count in Counter(hosts).items():
            agent = self._agents[self.names[hosts.index(host)]]
            chosen[host] = iter(ray.get(agent.free_ports.remote(count)))
        alone = len(chosen) == 1
        return tuple(
            f"{'localhost' if alone else _bracketed(host)}:{next(chosen[host])}" for host in hosts
        )

    def _environments(self, addresses: tuple[str, ...]) -> list[dict[str, str]]:
        environments = []
        run_secret = secret.new_secret()
        for task in self._tasks:
            described = {"KFIT_CLUSTER": "none"}
            if len(addresses) > 1:
                config = Cluster({"worker": addresses}, task).to_tf_config()
                described = {
                    "KFIT_CLUSTER": "tf_config",
                    "TF_CONFIG": config,
                    secret.VARIABLE: run_secret,
                }
            environments.append(self._identified({**self._backend.variables, **described}))
        return environments

    def _all(self, method: str, *args: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Calls a method of all agents, the Ray actors of the workers, and waits for the results.

        Args:
            method: The name of the method of `Agent`.
            *args: Arguments that are the same for all agents.
            each: One further argument for each agent, in the order of the workers; None if there is
                no such argument.

        Returns:
            The results, in the order of the workers.

        Raises:
            _AgentLostError: If the method raised an error on an agent, or an agent died.
            _NotUpError: If some agents have not answered before the start timeout, or before the
                launch was stopped.
        """
        import ray

        calls = [
            getattr(agent, method).remote(*args, *([] if each is None else [each[index]]))
            for index, agent in enumerate(self._agents.values())
        ]
        deadline = time.monotonic() + self._backend.start_timeout
        while True:
            _, waiting = ray.wait(calls, num_returns=len(calls), timeout=_ROUND)
            if not waiting:
                return [self._answer(*each) for each in zip(self.names, calls, strict=True)]
            if self._early is not None:
                raise _NotUpError("stopped while it started")
            if time.monotonic() >= deadline:
                missing = [self.names[calls.index(call)] for call in waiting]
                raise _NotUpError(
                    f"the Ray actors of {', '.join(missing)} did not come up within "
                    f"{self._backend.start_timeout:g} s; see `ray status`, or wait for longer by "
                    "`start_timeout`"
                )

    def _answer(self, name: str, call: Any) -> Any:
        import ray
        from ray.exceptions import RayError

        try:
            return ray.get(call)
        except RayError as error:
            raise _AgentLostError(name, error) from error

    def _follow(self) -> None:
        """Polls the Ray actors of the workers until all workers have ended.

        Each poll returns the output, the heartbeat and, in the end, the exit of a worker.
        """
        import ray
        from ray.exceptions import ActorUnavailableError, RayError

        asked: dict[Any, str] = {}
        while self._running:
            for name in self._running - set(asked.values()):
                asked[self._agents[name].news.remote()] = name
            answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ROUND)
            for call in answered:
                name = asked.pop(call)
                try:
                    self._take(name, ray.get(call))
                except ActorUnavailableError:
                    continue  # polled again; if the worker makes no progress, it counts as hung
                except RayError as error:
                    self._end(self._exit_of(name, error))
            if self._killed_at and time.monotonic() - self._killed_at > _PATIENCE:
                for name in tuple(self._running):
                    ray.kill(self._agents[name])
            time.sleep(_ROUND)

    def _take(self, name: str, news: Any) -> None:
        """Handles the report that a worker's Ray actor has returned when it was polled.

        The worker's output is printed. Its heartbeat and, if it has ended, its result and errors
        are stored, and `on_exit` is called.

        Args:
            name: The name of the worker.
            news: The report, an object of the class `News`.
        """
        for is_stderr, line in news.lines:
            self._output.tell(self._output.stderr if is_stderr else self._output.stdout, line)
        if news.pulse.pid:
            self._pulses[name] = _by_this_clock(news.pulse, time.monotonic() - news.now)
        (self._stopped.add if news.stopped else self._stopped.discard)(name)
        if news.end is None:
            return
        self._tails[name] = news.end.tail
        self._stop_notes[name] = news.end.stop_note
        self._reached[name] = news.end.reached
        if news.end.error is not None:
            self._errors[name] = news.end.error
        for raised in news.end.raised:
            self._backend.call_files.put_error(raised)
        if news.end.result is not None:
            self._backend.call_files.put_result(news.end.result)
        self._end(TaskExit(name, news.end.returncode))

    def _end(self, exit: TaskExit) -> None:
        self._running.discard(exit.name)
        self._on_exit(exit)


class _NotUpError(Exception):
    """An error that is raised if a launch is stopped, or takes too long, while workers start."""


class _AgentLostError(Exception):
    """An error that is raised if a Ray actor fails or dies while the workers are being started.

    Args:
        name: The name of the worker.
        error: Ray's error.
    """

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(f"{name}: {error}")
        self.name = name
        self.error = error


def _reason(error: Exception) -> str:
    """Returns the one line of a Ray error that says the cause, for a message to the user."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    causes = [line for line in lines if line.startswith("The actor is dead because")]
    causes = [line.partition(". ")[0] for line in causes]
    return (raised[-1:] or causes[:1] or lines[:1] or [type(error).__name__])[0][:500]


def _by_this_clock(pulse: Pulse, shift: float) -> Pulse:
    since = pulse.meeting_since
    return replace(
        pulse,
        time=pulse.time + shift,
        meeting_since=None if since is None else since + shift,
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _amounts(resources: Mapping[str, float]) -> dict[str, float]:
    """Selects the resources that a user can request from Ray, for an error message.

    Memory and the resources that Ray adds internally are left out.

    Args:
        resources: The amounts of all resources by their names, as Ray lists them.

    Returns:
        The amounts of the selected resources by their names.
    """
    own = ("node:", "memory", "object_store_memory", "bundle", "accelerator_type:")
    return {
        name: amount
        for name, amount in sorted(resources.items())
        if not name.startswith(own) and "_group_" not in name
    }
