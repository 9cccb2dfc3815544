"""Links from pages to files of the sources that are no pages, such as ../examples/README.md.

On the platform that hosts the repository such a link opens the file. On the site it downloads the
file; a link to a folder becomes plain text. A file or a heading that is missing is a warning.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#([^)\s]+))?\)")
_logger = logging.getLogger(__name__)


def anchors_of(page: Path) -> set[str]:
    """Returns the anchors of a Markdown file's headings, as hosting platforms make them."""
    headings = re.findall(r"^#+ +(.*?) *$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrites the links of a page that lead out of the folder of the pages.

    Args:
        app: Sphinx.
        docname: The name of the page.
        source: The text of the page, as a list of one item, which is replaced.
    """
    folder = (Path(app.srcdir) / docname).parent

    def rewritten(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        file = (folder / path).resolve()
        if file.is_relative_to(app.srcdir):
            return link[0]
        if not file.exists():
            _logger.warning("the file %s is missing", path, location=docname)
        elif anchor and anchor not in anchors_of(file):
            _logger.warning("%s has no heading #%s", path, anchor, location=docname)
        return f"[{text}](path:{path})" if file.is_file() else text

    source[0] = _LINK.sub(rewritten, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects `rewrite` to Sphinx."""
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True}
