"""Lists the packages to install, and makes the text for PyPI; the rest is in ``pyproject.toml``.

``callbacks/`` installs as ``kfit.callbacks`` and ``datasets/`` as ``kfit.datasets``; ``kfit/`` has
a symbolic link to each of them, so that Python, type checkers and editors find them in the sources
under the names that they have when they are installed. Nothing is installed under a plain name.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def without_relative_links(text: str, source: str, revision: str) -> str:
    """Returns a page of the repository as it can be read elsewhere, such as on PyPI.

    Args:
        text: The page, in Markdown.
        source: The address of the repository on GitHub, to which relative links and pictures lead
            then. If it is empty, links become plain text, and pictures are left out.
        revision: The branch or tag there.
    """

    def linked(found: re.Match[str]) -> str:
        words, target = found.groups()
        if source:
            return f"[{words}]({source}/blob/{revision}/{target})"
        path = target.partition("#")[0]
        return words if words == path else f"{words} ({path})"

    def shown(found: re.Match[str]) -> str:
        pictures = rf'\1="{source}/raw/{revision}/\2"'
        return re.sub(r'\b(src|srcset)="(?!\w+:)([^"]+)"', pictures, found[0]) if source else ""

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    for index in range(0, len(parts), 2):  # the others are code
        part = re.sub(r"<picture>.*?</picture>\n*", shown, parts[index], flags=re.S)
        parts[index] = re.sub(r"\[([^\]]+)\]\((?!\w+:)([^)\s]+)\)", linked, part)
    return "".join(parts)


def read_me() -> str:
    """Returns README.md, with the links that `[project.urls]` in ``pyproject.toml`` allows."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    source = re.search(r'^Source = "(.+?)/?"$', project, re.M)
    package = (ROOT / "kfit" / "__init__.py").read_text(encoding="utf-8")
    [version] = re.findall(r'^__version__ = "(.+)"$', package, re.M)
    return without_relative_links(
        (ROOT / "README.md").read_text(encoding="utf-8"),
        source[1] if source else "",
        "main" if "dev" in version else f"v{version}",
    )


setup(
    long_description=read_me(),
    long_description_content_type="text/markdown",
    # Said aloud, it makes an editable install a path, which type checkers and editors can follow.
    package_dir={"": "."},
    packages=find_packages(include=["kfit", "kfit.*"]),
    package_data={"kfit": ["py.typed"], "kfit.datasets": ["*.npz", "*.md"]},
    include_package_data=False,
)
