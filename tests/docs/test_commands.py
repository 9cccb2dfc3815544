"""Every command that a page shows can be read by a shell, and those of kfit by the command line.

Nothing is run. In blocks the commands must be whole; in a sentence, arguments may be left out.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfit.argument_checks import CommandError
from kfit.commands.main import _parser

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = "kfit|kill|kubectl|pip|pytest|python|sbatch|srun|tensorboard"
COMMAND = re.compile(rf"((?:[A-Z_]+=\S* )*(?:{PROGRAMS}) .*)")


def commands_of(text: str) -> list[str]:
    """The commands in the blocks of a page that name no language, one line each.

    In a block that shows output as well, they stand after a "$".
    """
    lines = []
    for language, code in FENCE.findall(text):
        if not language:
            whole = code.replace("\\\n", " ").splitlines()
            marked = [line[2:] for line in whole if line.startswith("$ ")]
            lines += marked or whole
    return [line for line in lines if COMMAND.fullmatch(line)]


def calls_of_kfit(command: str) -> Iterator[list[str]]:
    """The arguments of each call of kfit in a command of a shell."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("&|;<>()"):
            parts.append([])
        else:
            parts[-1].append(word)
    for part in parts:
        while part and (part[0] == "srun" or re.match("[A-Z_]+=", part[0])):
            part = part[1:]
        if part[:1] == ["kfit"]:
            yield part[1:]
        elif part[:3] == ["python", "-m", "kfit"]:
            yield part[3:]


def problem_of(words: list[str], *, is_whole: bool = True) -> str | None:
    """What the command line says against a call; None if nothing is wrong."""
    if words[:1] and words[0].endswith(".py"):
        return None
    try:
        found = _parser().parse_args(words)
    except CommandError as error:
        lacks = re.search("arguments are required|expected one argument", str(error))
        return None if lacks and not is_whole else str(error)
    lacks_script = words[0] in ("run", "verify") and not (found.script or found.module)
    return "there is no script" if lacks_script and is_whole else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_can_be_read(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = commands_of(text)
    read = subprocess.run(
        ["sh", "-n"], input="\n".join(commands), capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    calls = [words for command in commands for words in calls_of_kfit(command)]
    assert [(words, problem_of(words)) for words in calls if problem_of(words)] == []
    named = re.findall(r"`(kfit [a-z][^`\n]*)`", FENCE.sub("", text))
    calls = [words for command in named for words in calls_of_kfit(command)]
    wrong = [(words, problem_of(words, is_whole=False)) for words in calls]
    assert [(words, problem) for words, problem in wrong if problem] == []


def test_there_are_commands() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    commands = [command for text in texts for command in commands_of(text)]
    assert sum(len(list(calls_of_kfit(command))) for command in commands) > 20
    assert sum(len(re.findall("`kfit [a-z]", text)) for text in texts) > 100


@pytest.mark.parametrize(
    "command",
    [
        "kfit run --wrokers 2 train.py",
        "kfit run --workers 2",
        "pip install . && kfit rum train.py",
        "A=1 srun kfit manifest slurm --nodes 2 --docter | sbatch  # a job",
        "kfit inspect --json > all.json",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    [found] = commands_of(f"```\n$ {command}\n```\n")
    [words] = calls_of_kfit(found)
    assert problem_of(words)
