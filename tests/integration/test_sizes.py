"""No file and no function is too long to be read at one go; the ones that still are have a limit that only falls."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [file for package in ("grsgd", "coding", "experiments") for file in (ROOT / package).rglob("*.py")]
MAX_FILE, MAX_FUNCTION = 400, 60
"""Lines of a file, and of a function with its decorators and docstring."""
LONGER_FILES: dict[str, int] = {}
LONGER_FUNCTIONS = {"grsgd/simulator/fast_ring/times.py end_times": 106}
"""Files and functions that are longer, with their lines: the numbers may fall, and no name may be added.

Five functions that share records in place of ``end_times`` take twice its time in compiled code."""


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def lines_of_functions(file: Path) -> dict[str, int]:
    """Return the number of lines of each function of a file, by file and name of the function."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min(line.lineno for line in (node, *node.decorator_list))
            name = f"{name_of(file)} {node.name}"
            found[name] = max(found.get(name, 0), node.end_lineno - first + 1)
    return found


def too_long(lines: dict[str, int], limit: int, longer: dict[str, int]) -> dict[str, int]:
    """Return the names with more lines than ``limit``, or than ``longer`` allows, with their lines."""
    return {name: count for name, count in lines.items() if count > longer.get(name, limit)}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_no_file_is_too_long():
    lines = {name_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert len(lines) > 400
    assert too_long(lines, MAX_FILE, LONGER_FILES) == {}
    assert {name: lines.get(name, 0) for name in LONGER_FILES} == LONGER_FILES, "shorter now: lower the number"


def test_no_function_is_too_long():
    lines = {name: count for file in FILES for name, count in lines_of_functions(file).items()}
    assert len(lines) > 3000
    assert too_long(lines, MAX_FUNCTION, LONGER_FUNCTIONS) == {}
    assert {name: lines.get(name, 0) for name in LONGER_FUNCTIONS} == LONGER_FUNCTIONS, "shorter now: lower the number"
