"""A digest of the code that makes runs; the digest is part of the name of each run file."""

import ast
import functools
import hashlib
from pathlib import Path

import coding
import grsgd

MAKE_NO_RUNS = ("cli",)
"""Folders of grsgd whose modules do not affect any run."""
LETTERS = 8
"""Number of letters of the digest in the name of a run."""


@functools.cache
def digest_code() -> str:
    """Return a digest of the code that makes runs: all modules of grsgd and coding, whether committed or not.

    Comments and docstrings do not change the digest.
    """
    found = hashlib.sha256()
    for package in (grsgd, coding):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            if file.relative_to(folder).parts[0] not in MAKE_NO_RUNS:
                found.update(f"{file.relative_to(folder.parent)}\n{dump_statements(file.read_bytes())}\n".encode())
    return found.hexdigest()[:LETTERS]


def dump_statements(source: bytes) -> str:
    """Return the statements of a module as text, without docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not is_text(one)]
    return ast.dump(tree)


def is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is only a string, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
