import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from kfit.argument_checks import check_positive
from kfit.heartbeat.tracebacks import of_user


def raised(function: Callable[[], Any]) -> list[str]:
    """The names of the functions that the user sees in the traceback of an error."""
    try:
        function()
    except Exception as error:
        shown = of_user(error, error.__traceback__)
        return [frame.name for frame in traceback.extract_tb(shown)]
    raise AssertionError("nothing was raised")


def users_code(action: Callable[[], Any]) -> None:
    action()


def test_an_argument_that_kfit_refuses_ends_at_the_users_call() -> None:
    names = raised(lambda: users_code(lambda: check_positive(batch_size=-1)))
    assert names == ["raised", "<lambda>", "users_code", "<lambda>"]


def test_an_error_of_the_users_code_is_shown_whole() -> None:
    def fails() -> None:
        raise ValueError("own")

    names = raised(lambda: users_code(fails))
    assert names[-1] == "fails"


def test_an_error_that_may_be_kfits_own_is_shown_whole() -> None:
    no_traceback: Any = 5
    names = raised(lambda: of_user(ValueError(), no_traceback))
    assert names[-1] == "_frames"


@pytest.mark.parametrize(("told", "lines"), [(True, 0), (False, 1)])
def test_an_interrupt_that_was_told_leaves_no_traceback(told: bool, lines: int) -> None:
    program = (
        "from kfit.heartbeat.tracebacks import say_nothing_of\n"
        "interrupt = KeyboardInterrupt()\n"
        f"if {told}: say_nothing_of(interrupt)\n"
        "raise interrupt\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -2
    assert done.stderr.count("Traceback") == lines
