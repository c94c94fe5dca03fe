"""Computes a digest of the code by which runs are made.

The digest is part of the name of each run file.
"""

import ast
import functools
import hashlib
from pathlib import Path

import coding
import grsgd

MAKE_NO_RUNS = ("cli",)
"""Folders of the package grsgd whose modules do not affect the results of any run."""
LETTERS = 8
"""Number of letters of the code's digest in the name of a run file."""


@functools.cache
def digest_code() -> str:
    """Return a digest of the code by which runs are made: all modules of grsgd and coding as they are on disk.

    Changes of comments and docstrings do not change the digest.
    """
    found = hashlib.sha256()
    for package in (grsgd, coding):
        folder = Path(package.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            if file.relative_to(folder).parts[0] not in MAKE_NO_RUNS:
                found.update(f"{file.relative_to(folder.parent)}\n{dump_statements(file.read_bytes())}\n".encode())
    return found.hexdigest()[:LETTERS]


def dump_statements(source: bytes) -> str:
    """Return the statements of a module as text that does not depend on docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not is_text(one)]
    return ast.dump(tree)


def is_text(statement: ast.stmt) -> bool:
    """Return True if ``statement`` consists only of a string, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
