"""The secret of a run, from its environment."""

import pytest

from kfit.cluster.cluster import ClusterError
from kfit.cluster.secret import new_secret, secret_of_run
from kfit.supervisor.local import local_commands


def test_it_is_that_of_the_environment_or_empty() -> None:
    assert secret_of_run({}) == secret_of_run({"KFIT_SECRET": ""}) == b""
    assert secret_of_run({"KFIT_SECRET": "0123456789abcdef"}) == b"0123456789abcdef"


def test_one_that_can_be_guessed_is_refused() -> None:
    expected = r"`KFIT_SECRET` has 5 characters; expected at least 16.*the same on all tasks"
    with pytest.raises(ClusterError, match=expected):
        secret_of_run({"KFIT_SECRET": "12345"})


def test_a_new_one_is_long_enough_and_another_each_time() -> None:
    one, two = new_secret(), new_secret()
    assert one != two
    assert secret_of_run({"KFIT_SECRET": one})


def test_the_tasks_of_a_local_run_have_one_in_common_and_each_run_another() -> None:
    def secrets(**options: int) -> list[str]:
        commands = local_commands(["true"], 2, {}, **options)
        return [command.env.get("KFIT_SECRET", "") for command in commands]

    one, two = secrets(), secrets(ps=1)
    assert len(set(one)) == len(set(two)) == 1
    assert one[0] != two[0]
    assert "KFIT_SECRET" not in local_commands(["true"], 1, {})[0].env
