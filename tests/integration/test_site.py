"""The site of the documentation."""

import pytest

from docs import generate
from tests.integration.test_documents import ROOT, headings

DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- generated: " in (DOCS / page).read_text()])
def test_generated_text_follows_from_the_code(page):
    text = (DOCS / page).read_text()
    assert generate.generated(text) == text, "python -m docs.generate"


def test_generated_text_of_each_kind():
    assert '| `topology` | `"ring"` | string |' in generate.options("dpsgd")
    assert "| `tail.RANK.seconds` | must be given | number > 0 |" in generate.keys()
    assert "`grsgd report [options] FILE.h5 ...`" in generate.commands()
    assert {"grsgd-train", "grsgd-testbed"} <= headings(DOCS / "reference" / "commands.md")
