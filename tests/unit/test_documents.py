"""Documents: what they name is there."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    file for folder in ("", "docs/", "experiments/**/", "tests/**/", "slurm/") for file in ROOT.glob(f"{folder}*.md")
)


def headings(document: Path) -> set[str]:
    """The headings of a document, as links name them."""
    lines = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    prose = re.sub(r"```.*?```|`[^`]*`", "", document.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:", link):
            path, _, heading = link.partition("#")
            target = document.parent / path if path else document
            assert target.exists(), link
            assert not heading or heading in headings(target), link


def test_modules_that_are_to_be_run_are_there():
    files = {*DOCUMENTS, ROOT / "Makefile", *ROOT.glob("slurm/*.*")} - {ROOT / "CHANGES.md"}  # which tells of old names
    text = "\n".join(file.read_text() for file in files)
    modules = set(re.findall(r"python -m ((?:grsgd|experiments|tests)(?:\.\w+)*)", text))
    assert "grsgd" in modules and "experiments.tables" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
