"""Reads the small JSON files that kfit writes to the directory of the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfit.user_files.foreign_json import read_json
from kfit.user_files.ownership import ForeignFileError


def read_small_file(path: str, check: Callable[[Any, str], None], content: str) -> Any:
    """Reads a JSON file that may have been written by somebody else.

    Args:
        path: The path of the file.
        check: Raises a ValueError if its first argument, the value in the file, is not as kfit
            writes it. The second argument is how the message names the value.
        content: What kfit would have written, such as "an end marker".

    Returns:
        The value in the file; None if there is no file.

    Raises:
        ForeignFileError: If the file was not written by kfit. This error is a ValueError.
    """
    try:
        found = read_json(path)
        check(found, "it")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ForeignFileError(
            f"{path} is not {content} that kfit wrote ({error}). Move it away."
        ) from error
    return found
