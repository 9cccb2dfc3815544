"""`ProgressBar`: Keras' progress bar with examples per second, cut to the width of the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from kfit.argument_checks import is_integer, shown
from kfit.heartbeat.terminal import columns_of_output, has_colors, in_notebook, width_of
from kfit.internals import patch_points as points
from kfit.internals.callbacks import measure_steps_by
from kfit.internals.patching import patched
from kfit.steps.told_tracing import telling
from kfit.training.bar_line import bar_line
from kfit.training.open_line import ERASE, OpenLine
from kfit.training.step_clock import StepClock

# The least seconds between two states of the bar, as in Keras.
_INTERVAL = 0.05

# How long the line tells that a snapshot was saved, if the line lasts so long.
_NOTE_SECONDS = 3.0

# The first step takes long if it is traced. The bar's first state is written over this line.
_PREPARING = "preparing the first step: it is traced and compiled"


class ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, which also shows the global examples per second and what kfit does.

    It is called a few times a second, unless a callback has batch hooks. Only the chief has it.
    Its line never wraps in a terminal. Without colors, as `NO_COLOR` asks for, the part of the bar
    that is left is thin.

    Args:
        global_batch_size: A function that returns the number of examples in a step over all
            replicas; None if it is not known.
    """

    def __init__(self, global_batch_size: Callable[[], int | None]) -> None:
        super().__init__()
        self._global_batch_size = global_batch_size
        self._clock = StepClock()
        self._is_measured = False
        self._trains = False
        self._has_begun = False
        self._awaits_first = False  # whether the first epoch has begun, and no step was shown
        self._drawn_at = 0.0
        self._behind: tuple[int, Any] | None = None  # the last step, if no state shows it yet
        self._line = ""  # what Keras has last printed of a bar that has not ended
        self._open = OpenLine()
        self._note = ""
        self._noted_at = 0.0
        self._is_note_drawn = False
        self._validation = ""  # how far the validation within `fit` is

    def note(self, text: str) -> None:
        """Sets what the end of the line says for a few seconds, such as "saved step 49".

        Of several lines in that time, only the first one says it.
        """
        self._note, self._noted_at, self._is_note_drawn = text, time.monotonic(), False

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Context of a call that the bar shows: what others print goes above the bar's line.

        However the call ends, the line has ended afterwards.
        """
        if self.verbose != 1:
            yield
            return
        with self._open.leaving_for_others(), telling(self._tell_of_tracing):
            try:
                yield
            finally:
                self.end_line()

    def end_line(self) -> None:
        """Ends the line of a bar that has not ended, without what kfit is no longer doing.

        If the line has left for another one, such as that of Ctrl-C, it is drawn once more.
        """
        if self._line == _PREPARING:
            self._open.leave()
        elif self._open.width or (self._line and columns_of_output()):
            self._note = self._validation = ""
            with self._open.drawing():
                _print(self._drawn(self._line, is_last=True) + "\n")
        self._line, self._open.width = "", 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins a training, in which validation has no bar of its own."""
        super().on_train_begin(logs)
        self._trains = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins the bar of an epoch."""
        super().on_epoch_begin(epoch, logs)
        self._begin()

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins the bar of an evaluation; within `fit` the line says that it validates."""
        super().on_test_begin(logs)
        if not self._trains:
            self._begin()
        elif self._line:
            self._validation = "validating"
            self._catch_up()
            self._redraw()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begins the bar of a prediction."""
        super().on_predict_begin(logs)
        self._begin()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock before the first step, which is not step 0 if training resumes here."""
        self._measure_from(batch)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock before the first step of an evaluation."""
        if not self._trains:
            self._measure_from(batch)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock before the first step of a prediction."""
        self._measure_from(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Updates the bar after training steps."""
        self._took(batch, logs, super().on_train_batch_end)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Updates the bar after steps of an evaluation."""
        if not self._trains:
            self._took(batch, logs, super().on_test_batch_end)
        elif self._line and time.monotonic() - self._drawn_at >= _INTERVAL:
            self._validation = f"validating, step {batch + 1}"
            self._redraw()

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Updates the bar after steps of a prediction."""
        self._took(batch, None, super().on_predict_batch_end)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the bar of an epoch."""
        self._end(lambda: super(ProgressBar, self).on_epoch_end(epoch, logs))

    def on_test_end(self, logs: Any = None) -> None:
        """Ends the bar of an evaluation; within `fit` the line no longer says that it validates."""
        if self._trains:
            self._validation = ""
        else:
            self._end(lambda: super(ProgressBar, self).on_test_end(logs))

    def on_predict_end(self, logs: Any = None) -> None:
        """Ends the bar of a prediction."""
        self._end(lambda: super(ProgressBar, self).on_predict_end(logs))

    def _begin(self) -> None:
        measure_steps_by(self.progbar, lambda step, now: self._clock.seconds_per_step)
        self._is_measured = False
        self._drawn_at = 0.0
        self._behind = None
        if self._is_note_drawn:
            self._note = ""
        self._awaits_first, self._has_begun = not self._has_begun, True

    def _tell_of_tracing(self) -> None:
        if self._awaits_first and not self._line and columns_of_output():
            self._line = _PREPARING
            self._redraw()

    def _measure_from(self, batch: int) -> None:
        if not self._is_measured:
            self._clock.begin(batch)
            self._is_measured = True

    def _took(self, batch: int, logs: Any, update: Callable[[int, Any], None]) -> None:
        step = batch + 1
        self._awaits_first = False
        self._clock.took(step)
        now = time.monotonic()
        if self.verbose != 1 or now - self._drawn_at < _INTERVAL:
            self.seen = step  # Keras would do no more either, but takes its time for it
            self._behind = batch, logs
            return
        with self._fitted():
            update(batch, logs)
        self._drawn_at, self._behind = now, None

    def _catch_up(self) -> None:
        """Draws the state after the last training step, if it came too soon after another one."""
        behind, self._behind = self._behind, None
        if behind is None:
            return
        interval, self.progbar.interval = self.progbar.interval, 0.0
        with self._fitted():
            super().on_train_batch_end(*behind)
        self.progbar.interval = interval

    def _end(self, end: Callable[[], None]) -> None:
        with self._fitted():
            end()
        self._line, self._open.width = "", 0

    @contextmanager
    def _fitted(self) -> Iterator[None]:
        """Context in which what Keras' bar prints is made to fit, with kfit's additions."""
        with self._open.drawing(), patched(points.PRINT_MESSAGE, self._printer):
            yield

    def _printer(self, original: Callable[..., None]) -> Callable[..., None]:
        def print_message(message: str, line_break: bool = True) -> None:
            line = message.lstrip("\b\r\n").rstrip(" \n")
            is_last = message.endswith("\n")
            original(self._drawn(line, is_last) + "\n" * is_last, line_break=False)

        return print_message

    def _redraw(self) -> None:
        self._drawn_at = time.monotonic()
        with self._open.drawing():
            _print(self._drawn(self._line))

    def _drawn(self, line: str, is_last: bool = False) -> str:
        """Returns what is to be printed so that the present line becomes `line`."""
        self._line = line
        columns = columns_of_output()
        is_new = time.monotonic() - self._noted_at < _NOTE_SECONDS
        news = self._validation or (self._note if is_new else "")
        self._is_note_drawn |= news == self._note and not is_last
        extras = [extra for extra in (self._speed(), "" if is_last else news) if extra]
        colors = bool(columns) and has_colors()
        is_timed = self._clock.seconds_per_step > 0  # no step is left where training has resumed
        text = bar_line(line, extras, columns, colors=colors, is_last=is_last, is_timed=is_timed)
        if self.verbose == 2:
            return text
        first, *more = text.split("\n")
        rest = " " * (self._open.width - width_of(first))
        self._open.width = width_of(more[-1] if more else first)
        if is_last and colors and not in_notebook(sys.stdout):
            # What is selected in a terminal, or read from its log, has no blanks at its end.
            return "\n".join([f"{ERASE}{first}", *more])
        return "\n".join([f"\r{first}{rest}", *more])

    def _speed(self) -> str:
        seconds, examples = self._clock.seconds_per_step, self._global_batch_size()
        if not seconds or not examples or not self._clock.is_without_tracing:
            return ""
        return f"{_short(examples / seconds)} examples/s"


def _short(number: float) -> str:
    """Returns a number in at most five characters, such as "7,812" or "21.2k"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= max(size, 9999.5):
            return f"{number / size:.3g}{letter}" if number < 999.5 * size else f"1e3{letter}"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def chosen_verbose(verbose: str | int) -> str | int:
    """Returns 1 or 2 for "auto": a bar if a terminal or notebook shows the output, else lines.

    Any other value is returned unchanged.

    Args:
        verbose: As for `fit`.

    Raises:
        ValueError: If it is anything else.
    """
    is_known = isinstance(verbose, (str, bool)) or is_integer(verbose)
    if not is_known or verbose not in (0, 1, 2, "auto"):
        raise ValueError(f'`verbose` must be 0, 1, 2 or "auto". Received: {shown(verbose)}')
    if verbose != "auto":
        return verbose
    return 1 if columns_of_output() or "PYCHARM_HOSTED" in os.environ else 2


def note_in_bars(callbacks: Iterable[Any], text: str) -> None:
    """Lets the progress bars among callbacks say something at the end of their line."""
    for callback in callbacks:
        if isinstance(callback, ProgressBar):
            callback.note(text)


@contextmanager
def bars_shown(callbacks: Iterable[Any]) -> Iterator[None]:
    """Context of a call whose progress bars are among its callbacks; see `ProgressBar.shown`."""
    with ExitStack() as stack:
        for callback in callbacks:
            if isinstance(callback, ProgressBar):
                stack.enter_context(callback.shown())
        yield


def end_lines_of_bars(callbacks: Iterable[Any]) -> None:
    """Ends the lines of the progress bars among callbacks, so that another line can follow."""
    for callback in callbacks:
        if isinstance(callback, ProgressBar):
            callback.end_line()


def _print(text: str) -> None:
    points.PRINT_MESSAGE.owner.print_msg(text, line_break=False)
