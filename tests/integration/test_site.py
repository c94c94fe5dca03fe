"""The site of the documentation: its navigation, its generated text, and the pages at old addresses."""

import re
from pathlib import Path

import pytest

import grsgd
from docs import generate

yaml = pytest.importorskip("yaml", reason="comes with the extra `docs`")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
PARTS = {"start", "how-to", "reference", "findings", "results"}
TOP = {"index.md", "results.md"}
"""Pages in no folder, beside those at old addresses, which only say where their text is now."""
MAX_LINES = 20


def pages_of(nav) -> list[str]:
    """Return the pages of a piece of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for piece in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(piece)]


def test_every_page_is_in_the_navigation_once():
    nav = re.search(r"^nav:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[0]
    named = pages_of(yaml.safe_load(nav))
    assert sorted(named) == [page for page in PAGES if page in TOP or "/" in page]
    assert {page.partition("/")[0] for page in named if "/" in page} == PARTS


@pytest.mark.parametrize("page", [page for page in PAGES if "/" not in page and page not in TOP])
def test_a_page_at_an_old_address_only_says_where_its_text_is(page):
    lines = (DOCS / page).read_text().splitlines()
    assert lines[0].startswith("# ") and len(lines) <= MAX_LINES
    assert all("](" in line for line in lines[1:] if line not in ("", "This page has moved.", "This page has moved:"))


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- generated: " in (DOCS / page).read_text()])
def test_generated_text_follows_from_the_code(page):
    text = (DOCS / page).read_text()
    assert generate.generated(text) == text, "python -m docs.generate"


def test_generated_text_of_each_kind():
    assert '| `topology` | `"ring"` | string |' in generate.options("dpsgd")
    assert "| `tail.RANK.seconds` | must be given | number > 0 |" in generate.keys()
    assert "`grsgd report [options] FILE.h5 ...`" in generate.commands()
    assert "## grsgd train\n" in generate.commands() and "## grsgd testbed\n" in generate.commands()


def test_the_page_on_python_has_every_public_name():
    text = (DOCS / "reference" / "python.md").read_text()
    shown = re.findall(r"^::: ([\w.]+)\.(\w+)$", text, re.MULTILINE)
    assert {name: place for place, name in shown} == grsgd._PLACES
    assert sorted(re.findall(r"^## grsgd\.(\w+)$", text, re.MULTILINE)) == grsgd.__all__
