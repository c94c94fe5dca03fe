"""Limits have one pair of words: the names of constants begin with MAX_ or MIN_."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHERS = ("MOST_", "LEAST_", "MAXIMUM_", "MINIMUM_", "LARGEST_", "SMALLEST_")


def test_no_constant_has_another_word_for_a_limit():
    files = [file for package in ("grsgd", "coding", "experiments", "tests") for file in (ROOT / package).rglob("*.py")]
    names = {
        f"{file.relative_to(ROOT)}: {node.id}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assert len(names) > 10_000
    assert sorted(name for name in names if name.partition(": ")[2].startswith(OTHERS)) == []
