"""What a job file is written from."""

import pytest

from kfit.argument_checks import CommandError
from kfit.manifest.job import Job, check_environment, name_of, whole_cpus


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (["src/train_mnist.py", "--lr", "1"], "train-mnist"),
        (["-m", "my.Training"], "my-training"),
        (["2024_run.py"], "kfit-2024-run"),
        (["ü.py"], "kfit"),
        ([], "kfit"),
    ],
)
def test_a_job_is_called_by_its_program(program: list[str], name: str) -> None:
    assert name_of(program) == name


@pytest.mark.parametrize(("text", "count"), [("8", 8), ("2.5", 2), ("500m", 1), ("3500m", 3)])
def test_whole_cpus(text: str, count: int) -> None:
    assert whole_cpus(text) == count


def test_the_doctor_takes_the_place_of_the_program() -> None:
    job = Job("a", ["train.py", "--x"], start_timeout=60, backup_dir="/b", doctor=True)
    assert job.command() == ["kfit", "doctor", "--timeout", "60", "--backup-dir", "/b"]
    assert Job("a", ["train.py", "--x"]).command()[-2:] == ["train.py", "--x"]


def test_variables_are_pairs() -> None:
    assert check_environment(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1", "1A=2", "A-B=1"):
        with pytest.raises(CommandError, match="expected NAME=VALUE"):
            check_environment([wrong])
    for wrong in ("A=\0", "A=\udcff"):
        with pytest.raises(CommandError, match="bytes that are not text"):
            check_environment([wrong])
