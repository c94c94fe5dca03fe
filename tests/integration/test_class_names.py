"""One name, one class: a name in a trace, a message or a page says which class it is."""

import ast
from collections import defaultdict

from experiments.papers import ROOT


def test_no_class_name_occurs_twice():
    files = [file for package in ("grsgd", "coding") for file in (ROOT / package).rglob("*.py")]
    found = defaultdict(list)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(ROOT)))
    assert len(files) > 250 and {name: where for name, where in found.items() if len(where) > 1} == {}
