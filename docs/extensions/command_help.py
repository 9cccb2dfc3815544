"""The directive `command-help`: the help of a command of kfit, as the command prints it."""

import os
import subprocess
import sys

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


class CommandHelp(Directive):
    """Shows what `python -m kfit COMMAND --help` prints; its argument is the command."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Runs the command.

        Returns:
            A literal block with the output.

        Raises:
            subprocess.CalledProcessError: If kfit has no such command.
        """
        done = subprocess.run(
            [sys.executable, "-m", "kfit", *self.arguments[0].split(), "--help"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "90"},
        )
        return [nodes.literal_block(done.stdout, done.stdout, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Adds the directive to Sphinx."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
