"""The habits of writing that make a reader stop: no folder shows more of them than it did."""

from pathlib import Path

import pytest

from tests import words


@pytest.mark.parametrize(
    ("text", "habits"),
    [
        ('def f():\n    """Of the ranks, the last."""', ["beginning"]),
        ('def f():\n    """Return the last rank.\n\n    Of all."""', []),
        ('"""Return how much those of the ranks are."""', ["pronoun"]),
        ("# Whoever waits for so many ranks.", ["so many", "phrase"]),
        ("# As many as it takes: so many that it is enough.", []),
        ('raise ValueError(f"rank {rank} is held against what it has sent")', ["pronoun", "phrase"]),
        ('"""Return ' + "a very " * 16 + 'long sentence."""', ["long"]),
        ('"""Return ``those of it``."""', []),
        ('name = "what it is"', []),
    ],
)
def test_habits_of_a_module(tmp_path: Path, text, habits):
    file = tmp_path / "module.py"
    file.write_text(text + "\n")
    assert [habit for sentence in words.sentences(file) for habit in words.habits_of(sentence)] == habits


def test_a_page_is_read_without_its_code_and_per_cell(tmp_path: Path):
    file = tmp_path / "page.md"
    code = "```\nwhoever\n```"
    file.write_text(f"# Title\n\nUse `what it is`, [here](what_it_is.md).\n\n{code}\n\n| one | those of a rank |\n")
    found = [(sentence.line, words.habits_of(sentence)) for sentence in words.sentences(file)]
    assert [line for line, habits in found if habits] == [9]


def test_no_folder_shows_a_habit_more_often_than_before():
    """Write plainly, or lower the counts by ``python -m tests.words --write`` after sentences have become plainer."""
    allowed = words.allowed()
    more = [
        f"{folder}: {habit} {number}, allowed {allowed.get(folder, {}).get(habit, 0)}: python -m tests.words {folder}"
        for folder, found in words.count(words.read_files()).items()
        for habit, number in found.items()
        if number > allowed.get(folder, {}).get(habit, 0)
    ]
    assert more == []


def test_counts_only_fall(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(words, "COUNTS", tmp_path / "words.toml")
    words.write({"docs": words.Counter(long=3, phrase=1)})
    words.write({"docs": words.Counter(long=5)})
    assert words.allowed()["docs"] == {"beginning": 0, "pronoun": 0, "so many": 0, "phrase": 0, "long": 3}
