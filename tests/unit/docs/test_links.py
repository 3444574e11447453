"""README.md and docs/: every link leads to an existing file, every anchor to a heading."""

from __future__ import annotations

import re

import pytest

from tests.support.pages import PAGES, ROOT, anchors, links, text_of


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target.resolve().relative_to(ROOT)))):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    listed = set(re.findall(r"\]\(([\w/.-]+\.md)\)", text_of("docs/index.md")))
    assert {f"docs/{page}" for page in listed} == {p for p in PAGES if p.startswith("docs/")} - {
        "docs/index.md"
    }


def test_the_index_has_the_five_groups() -> None:
    groups = re.findall(r"(?m)^## (.+)$", text_of("docs/index.md"))
    assert groups == ["Tutorial", "How-to guides", "Reference", "Explanation", "Decisions"]


def test_the_readme_is_short_and_names_its_two_commands_and_the_licences() -> None:
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 120
    assert all(words in readme for words in ("make demo", "make test", "Apache-2.0", "MIT"))
