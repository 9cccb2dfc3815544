"""Whether kfit does with a program what Keras does with it, cut off or not."""

import random
import re
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.programs.generated.clock_kill import run_and_kill
from tests.programs.generated.compare import TOLERANCES, differences
from tests.programs.generated.place import NUM_DEVICES, Place
from tests.programs.generated.refusals import is_refusal
from tests.programs.generated.run import Outcome, run

BY_CLOCK = 0.3
"""The part of kills that comes at any moment, to a process of its own."""
ROUNDING = 1e-6
"""What may come of rounding in float64 at the most."""
DRAWS = ("Dropout", "GaussianNoise", "Random")


@dataclass
class Verdict:
    """What became of a program.

    Its status is "passed", "refused", "failed", or "invalid" where Keras itself cannot run it.
    """

    status: str
    kind: str = ""
    """What kind of failure, for telling one from another."""
    details: list[str] = field(default_factory=list)


def mirrored(replicas: int, seed: int = 0) -> str:
    """The strategy of that many logical devices, as code.

    That of half of the seeds is TensorFlow's, which sums by collectives, as all do on GPUs.
    """
    if replicas == 1:
        return '"one_device"'
    devices = [f"CPU:{index}" for index in range(replicas)]
    if seed % 2:
        return f"tf.distribute.MirroredStrategy({devices})"
    return f"kfit.distribute.Mirrored({devices})"


def has_own_order(program: dict[str, Any]) -> bool:
    """Whether other data come than Keras takes, or in another order.

    Keras takes whole executions, more steps than it was told to take where those do not divide.
    With `initial_epoch` it begins with the first batch, kfit at the place of that epoch. Arrays are
    shuffled in an order of kfit's own. Keras reads ahead of a PyDataset that shuffles itself, and
    loses what it has read ahead of a generator when `fit` ends.
    """
    data, fits = program["data"], [each for each in program["actions"] if each["do"] == "fit"]
    whole = program["compile"].get("steps_per_execution") or 1
    told = [fit.get(name, 0) for fit in fits for name in ("steps_per_epoch", "validation_steps")]
    if any(steps % whole for steps in told):
        return True
    if any(fit.get("steps_per_epoch") and fit.get("initial_epoch") for fit in fits):
        return True
    if data["kind"] == "arrays":
        return any(action.get("shuffle") for action in fits)
    if data["kind"] == "generator":
        return len(fits) > 1
    return bool(data.get("shuffle") or data.get("shuffles"))


def depends_on_replicas(program: dict[str, Any]) -> bool:
    """Whether a program may come to something else on another number of replicas."""
    for layer in program["model"].get("body", []):
        name = layer["call"].rpartition(".")[2]
        if name.startswith(DRAWS):
            return True
        if name == "BatchNormalization" and not layer.get("synchronized"):
            return True
    return False


def drawn_save_freq(draw: random.Random) -> int | str:
    """How often a program that is killed saves; within executions of several steps, too."""
    return draw.choice([1, 2, 3, "epoch"])


def reference_of(program: dict[str, Any], replicas: int, folder: Path) -> Outcome | None:
    """What a run that is not cut off must come to, or None where nothing comes to the same.

    It is what Keras comes to, or kfit on one device where Keras takes the data in another order.
    """
    own_order = has_own_order(program)
    if (replicas > 1 and depends_on_replicas(program)) or (replicas == 1 and own_order):
        return None
    name = "one_device" if own_order else "keras"
    return run(program, _place_of_reference(program), folder / name)


def _place_of_reference(program: dict[str, Any]) -> Place:
    return Place(mirrored(1)) if has_own_order(program) else Place()


def check(program: dict[str, Any], replicas: int, killed: bool, folder: Path) -> Verdict:
    """Runs a program by Keras and by kfit on some replicas; cut off and begun again, if killed."""
    reference = reference_of(program, replicas, folder)
    if reference and reference.error is not None:
        return raised(program, reference, folder)
    draw = random.Random(program["seed"])
    save_freq = drawn_save_freq(draw)
    one = draw.random() < 0.3
    strategy = mirrored(replicas, program["seed"])
    place = Place(strategy, save_freq=save_freq if killed else None, one_directory=one)
    untouched = run(program, place, folder / "untouched")
    verdict = compared(program, reference, untouched, folder)
    if verdict.status != "passed" or not killed:
        return verdict
    about = f"{save_freq=}, one directory: {one}"
    again_in = folder / "killed"
    if draw.random() < BY_CLOCK:
        seconds = draw.random() * untouched.seconds
        was_killed = run_and_kill(program, place, again_in, seconds, NUM_DEVICES)
        about = f"killed after {seconds:.3f} s: {was_killed}, {about}"
    else:
        cut = 1 + int(draw.random() * untouched.events)
        about = f"cut off at event {cut} of {untouched.events}, {about}"
        first = run(program, replace(place, cut=cut), again_in)
        if first.error is not None:
            return _raised(first, "before it was cut off", about)
    again = run(program, place, again_in)
    return judged_resumed(untouched, again, about)


def raised(program: dict[str, Any], outcome: Outcome, folder: Path) -> Verdict:
    """The verdict on a run that raised: Keras says whether the program is valid at all."""
    keras = run(program, Place(), folder / "keras")
    if keras.error is not None:
        return Verdict("invalid", type(keras.error).__name__, _told(keras.error))
    return _raised(outcome)


def compared(
    program: dict[str, Any], reference: Outcome | None, other: Outcome, folder: Path
) -> Verdict:
    """The verdict on a run that was not cut off."""
    if other.error is not None:
        return raised(program, other, folder)
    if reference is None:
        return Verdict("passed")
    # Keras makes the variables of LoRA in float32, whatever the others are.
    single = program["dtype"] == "float64" and program["model"].get("lora")
    tolerance = TOLERANCES["float32" if single else program["dtype"]]
    # Keras weighs the losses of outputs by batches where the last one may be smaller.
    several = program["outputs"].get("count", 1) > 1
    found = differences(reference.records, other.records, tolerance, not several)
    hooks = differences(came(reference.hooks), came(other.hooks), tolerance, not several)
    if not found and not hooks:
        return Verdict("passed")
    rounding = 10 * spread(program, reference, folder)
    if tolerance < rounding < ROUNDING:
        found = differences(reference.records, other.records, rounding, not several)
        hooks = differences(came(reference.hooks), came(other.hooks), rounding, not several)
        if not found and not hooks:
            return Verdict("passed", f"all but rounding, which comes to {rounding / 10:.0e}")
    if rounding >= ROUNDING and (program["dtype"] != "float64" or has_exploded(reference)):
        return Verdict("invalid", f"it diverges: its rounding comes to {rounding / 10:.0e}")
    return Verdict("failed", _kind(found, "numbers"), found + hooks)


def spread(program: dict[str, Any], reference: Outcome, folder: Path) -> float:
    """How far apart a program ends if the last digits of its data are others.

    A loss that divides by a norm near zero, or an optimizer by a gradient near zero, enlarges
    whatever is rounded.
    """
    place = replace(_place_of_reference(program), shaken=True)
    found = differences(reference.records, run(program, place, folder / "shaken").records, 0.0)
    numbers = re.findall(r"apart by (\S+)$", "\n".join(found), re.M)
    return max(map(float, numbers), default=0.0)


def has_exploded(reference: Outcome) -> bool:
    """Whether the loss of a `fit` has become so large that no optimizer can have meant it."""
    histories = [value[1] for name, value in reference.records if name.endswith(" fit")]
    return any(max(history["loss"], default=0.0) > 1e6 for history in histories)


def came(hooks: list[Any]) -> list[Any]:
    """Without the hooks that begin a batch which never came.

    There is one at the end of data whose number of batches nobody knows yet, as there is in Keras;
    but here Keras is given the same data with a known number: see `data_text`.
    """
    after = [each[0] for each in hooks[1:]] + [""]
    return [
        hook
        for hook, following in zip(hooks, after, strict=True)
        if not hook[0].endswith("_batch_begin") or following == hook[0].replace("begin", "end")
    ]


def judged_resumed(untouched: Outcome, again: Outcome, about: str, alike: bool = False) -> Verdict:
    """The verdict on a run that was begun again, whose every bit must be the untouched one's.

    With `alike` the two are tasks of one run, of which one alone writes files.
    """
    if again.error is not None:
        return _raised(again, "begun again", about)
    one, two = untouched.records, again.records
    if alike:
        one, two = (
            [each for each in records if not each[0].endswith((" log", " files"))]
            for records in (one, two)
        )
    found = differences(one, two, 0.0) + _unexpected(untouched.hooks, again.hooks)
    if found:
        return Verdict("failed", _kind(found, "resumed"), [about, *found])
    return Verdict("passed")


def _kind(found: list[str], what: str) -> str:
    """The kind of a difference: which record is the first one to differ."""
    first = (found or ["hooks"])[0]
    return f"{what}: {first.partition('[')[0].lstrip('0123456789 ').partition(' {')[0]}"


def _raised(outcome: Outcome, when: str = "", about: str = "") -> Verdict:
    error = outcome.error
    assert error is not None
    name = getattr(error, "kind", type(error).__name__)
    status = "refused" if is_refusal(name, str(error)) else "failed"
    return Verdict(status, f"{name} {when}".strip(), [*([about] if about else []), *_told(error)])


def _told(error: BaseException) -> list[str]:
    told = getattr(error, "told", None) or "".join(traceback.format_exception(error))
    return str(told).splitlines()[-14:]


def _unexpected(whole: list[Any], part: list[Any]) -> list[str]:
    """The first hook of `part` that is not in `whole` after those before it."""
    position = 0
    for hook in part:
        while position < len(whole) and differences([whole[position]], [hook], 0.0):
            position += 1
        if position == len(whole):
            return [f"hook {hook} is not one of the untouched run's, or not in this order"]
        position += 1
    return []
