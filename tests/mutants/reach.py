"""Which tests reach which line, recorded once for each file of tests and kept while it and the code stay the same."""

import ast
import hashlib
import json
import re
from functools import partial
from pathlib import Path

from tests.mutants.changes import ROOT, Mutant, lines_of_functions
from tests.mutants.trial import UNIT, in_children, reached

CACHE = ROOT / "results" / "mutants"


class Reach:
    """The unit tests, how long each takes in seconds, and which of them reach which line of the files ``code``.

    ``anew``: record first what is not recorded of the code as it is; else the last records count.
    """

    def __init__(self, code: list[str], processes: int, say=lambda line: None, anew: bool = True):
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.lines: dict[str, dict[int, set[str]]] = {path: {} for path in code}
        self.texts = {name: (ROOT / name).read_text() for name in files_of_tests()}
        kept = {name: record_of(name) for name in self.texts}
        self.outdated = [name for name, file in kept.items() if not file.exists()]
        """Files of tests that are not recorded with the code as it is."""
        if anew and self.outdated:
            self.record(code, processes, say, kept)
        for name, file in kept.items():
            if not file.exists() and not (file := last_record_of(name)):
                continue
            record = json.loads(file.read_text())
            self.seconds |= record["seconds"]
            self.failed += record["failed"]
            for path in code:
                for line, tests in record["lines"].get(path, {}).items():
                    self.lines[path].setdefault(int(line), set()).update(tests)

    def record(self, code: list[str], processes: int, say, kept: dict[str, Path]):
        """Record the outdated files of tests in ``kept``, and remove all other records."""
        say(f"recording which lines the tests of {len(self.outdated)} files reach")
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in set(CACHE.glob("test*.json")) - set(kept.values()):
            old.unlink()

        def keep(name, record, output):
            if not isinstance(record, dict) or record["status"] not in (0, 1, 5):
                raise RuntimeError(f"{name} {record if isinstance(record, str) else ''}:\n{output}")
            kept[name].write_text(json.dumps(record))
            say(f"recorded {name}")

        in_children([(name, partial(reached, name, code)) for name in self.outdated], processes, keep)

    def tests(self, mutant: Mutant, most_seconds: float) -> dict[str, float]:
        """The tests that reach the mutant, quickest first, and the seconds they take; no more than ``most_seconds``.

        What runs at import is reached by all tests that call a function of the file, or whose file names the module.
        """
        lines = self.lines[mutant.path]
        if mutant.at_import:
            inside = lines_of_functions((ROOT / mutant.path).read_text())
            found = set().union(*(tests for line, tests in lines.items() if line in inside))
            stem = Path(mutant.path).stem
            word = re.compile(rf"\b{stem}\b")
            texts = self.texts.items()
            naming = tuple(f"{name}::" for name, text in texts if stem in Path(name).name or word.search(text))
            found |= {test for test in self.seconds if test.startswith(naming)}
        else:
            found = set().union(*(lines.get(line, ()) for line in mutant.lines))
        chosen, total = {}, 0.0
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            total += self.seconds[test]
            if total > most_seconds:
                break
            chosen[test] = self.seconds[test]
        return chosen


def files_of_tests() -> list[str]:
    """The files of unit tests, but for the tests of mutants themselves, as paths from the root of the project."""
    found = sorted(path for folder in UNIT for path in (ROOT / folder).rglob("test_*.py"))
    return [path.relative_to(ROOT).as_posix() for path in found if path.name != "test_mutants.py"]


def record_of(name: str) -> Path:
    """The file of the record of a file of tests: its name has the digest of all that the record depends on.

    That is the text of the file of tests, of what it imports, and of the project.
    """
    digest = hashlib.sha256()
    for path in sorted([*with_imports(ROOT / name), *ROOT.glob("grsgd/**/*.py"), *ROOT.glob("coding/*.py")]):
        digest.update(f"{path.relative_to(ROOT)}\n{path.read_text()}\n".encode())
    return CACHE / f"{dotted(name)}-{digest.hexdigest()[:16]}.json"


def last_record_of(name: str) -> Path | None:
    """The last record of a file of tests, of whatever code; None if it was never recorded."""
    return max(CACHE.glob(f"{dotted(name)}-*.json"), key=lambda file: file.stat().st_mtime, default=None)


def dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


def with_imports(path: Path) -> set[Path]:
    """A file of tests, and those of the folder ``tests`` that it imports."""
    found, new = set(), {path}
    while new:
        found |= new
        names = {name for file in new for name in imports_of(file.read_text()) if name.startswith("tests.")}
        files = {ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names}
        new = {file for file in files if file.exists()} - found
    return found


def imports_of(text: str) -> set[str]:
    """Full names of the modules that ``text`` imports, and of the names that it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names
