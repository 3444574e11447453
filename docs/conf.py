"""Sphinx: the site that `make docs` builds from the Markdown in this folder.

index.md is the table of contents: its headings are the navigation's groups, its links the pages. Nothing is fetched
from another host, neither while building nor by a reader's browser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Floodmark"
copyright = "the Floodmark authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["examples"]
nitpicky = True
smartquotes = False  # they turn --option into –option

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4  # the same slugs as GitHub's
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "Floodmark"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False


def with_navigation(text: str) -> str:
    """index.md with a hidden table of contents for each of its groups."""
    parts = []
    for section in re.split(r"(?m)^(?=## )", text):
        heading = re.match(r"## (.+)", section)
        pages = re.findall(r"\]\(([\w/-]+)\.md\)", section)
        if heading and pages:
            section += "\n```{{toctree}}\n:hidden:\n:caption: {}\n\n{}\n```\n\n".format(
                heading[1], "\n".join(pages)
            )
        parts.append(section)
    return "".join(parts)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] = with_navigation(source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)
