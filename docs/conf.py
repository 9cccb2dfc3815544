"""How Sphinx builds the pages of this folder: python -m sphinx -W -b html docs site."""

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # the reference imports kfit
sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "kfit"
author = copyright = "The kfit authors"
version = release = metadata.version("kfit")

extensions = [
    "myst_parser",  # pages are written in Markdown
    "sphinx.ext.autodoc",  # the reference is made of the docstrings
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_help",
    "flowchart",
    "outside",
]
exclude_patterns = ["extensions", "figures"]

myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]  # drawn as SVG by `flowchart`, without a script
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 80

html_theme = "furo"  # no page of it asks another host for a font or a script
html_title = "kfit"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False


def code_of(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turns the single backticks of a docstring, which mark code, into those of Sphinx."""
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)", _literal, "\n".join(lines))
    lines[:] = text.split("\n")


def _literal(match: re.Match[str]) -> str:
    return f"``{match[1]}``" + ("\\ " if match[2] else "")


def setup(app: Any) -> None:
    """Connects `code_of` to Sphinx; it runs before the sections of the docstring are read."""
    app.connect("autodoc-process-docstring", code_of, priority=100)
