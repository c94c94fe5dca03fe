"""docs/results.md and the pages beside it, as they lie in docs: short, whole, and with the numbers of their records."""

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from experiments import papers
from experiments.runner.outcome import EVIDENCE
from experiments.tables import checks, downloads, repetition, results_page, trust
from experiments.tables.claims import EXPECTED, read, read_claims
from experiments.tables.targets import PAPERS
from tests.support.numbers import NUMBER, OF_THE_TEMPLATE, all_numbers, told

ROOT = papers.ROOT
CASES = ROOT / "docs" / "results" / downloads.CASES

REPEATED = CASES.parent / repetition.RECORD


def rows_of(name: str) -> list[dict[str, str]]:
    with (CASES.parent / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def recorded_numbers() -> set[str]:
    """The numbers of what lies beside the page as CSV, of the papers' claims, and of what its trust rests on."""
    files = ("cases.csv", "simulator.csv", "break-even.csv", repetition.TABLE)
    known = all_numbers(
        [list(row.values()) for name in files if (CASES.parent / name).exists() for row in rows_of(name)]
    )
    known |= set(NUMBER.findall("\n".join((papers.folder(name) / "claims.toml").read_text() for name in PAPERS)))
    for record in (trust.RECORD, REPEATED):
        known |= all_numbers(json.loads(record.read_text())) if record.exists() else set()
    return known


def evidence_of(claims: list[str]) -> int:
    """The number of cases of these claims that are counted; what several scales share, once."""
    rows = [row for row in rows_of("cases.csv") if row["kind"] == EVIDENCE and row["claim"] in claims]
    return len({tuple(value for key, value in row.items() if key not in ("scale", "target")) for row in rows})


def test_the_page_in_docs_is_short_and_its_numbers_are_those_of_the_cases_beside_it():
    page = (ROOT / "docs" / "results.md").read_text()
    assert len(page.encode()) <= results_page.MAX_BYTES
    claims = read_claims(map(papers.folder, PAPERS))
    own = [name for name, claim in claims.items() if claim["kind"] != EXPECTED]
    counted = {str(len(own)), str(evidence_of(own))}
    assert told(page) - recorded_numbers() - OF_THE_TEMPLATE - counted == set()


@pytest.mark.parametrize("name", PAPERS)
def test_every_claim_of_a_paper_has_its_row_in_docs(name):
    page = (ROOT / "docs" / "results" / f"{name}.md").read_text()
    for claim in read_claims([papers.folder(name)]).values():
        assert "| " + " ".join(claim["statement"].split()).replace("<", "&lt;").replace("|", "\\|") in page, claim["id"]


@pytest.mark.skipif(not REPEATED.exists(), reason="no scale was recorded a second time")
def test_the_comparison_of_two_recordings_is_that_of_the_table_beside_it():
    """The table has the present verdicts of the first recording."""
    found, rows = checks.load(repetition.Repetition, REPEATED), rows_of(repetition.TABLE)
    assert vars(found).items() >= repetition.counts(rows).items()
    first = [row for row in rows_of("cases.csv") if row["scale"] == found.scale]
    columns = (*repetition.OF_A_CASE, *repetition.OF_A_RECORDING)
    assert {tuple(row[column] for column in columns) for row in rows} == {
        tuple(row[column] for column in columns) for row in first
    }


def test_the_page_begins_with_sentences_on_each_paper():
    """They are left out if verdicts have changed since they were written."""
    page = (ROOT / "docs" / "results.md").read_text().partition("The table")[0]
    assert all(f"\n- **{read(papers.folder(name))['paper']['name']}** " in page for name in PAPERS)


def test_readme_shows_the_picture_of_all_main_claims():
    readme = (ROOT / "README.md").read_text()
    assert 'src="docs/results/forest.svg"' in readme
    assert set(re.findall(r"docs/results/[\w.-]+\.svg", readme)) <= {
        f"docs/results/{Path(path).name}" for path in CASES.parent.glob("*.svg")
    }


@pytest.mark.parametrize("picture", sorted(CASES.parent.glob("*.svg")), ids=lambda path: path.name)
def test_each_picture_says_in_words_what_it_shows(picture):
    root = ElementTree.parse(picture).getroot()
    assert root.get("role") == "img" and root[0].tag.endswith("title") and root[0].text.strip()
