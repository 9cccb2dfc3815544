"""Puts the repository on the path: ``tests`` is never installed."""

import sys
from pathlib import Path

import kfit  # noqa: F401  the installed one, before ./kfit can be found

sys.path.append(str(Path(__file__).parents[2]))
