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
    """The tests of all files in tests/unit, how long each takes, and what it reaches of the files ``code``."""

    def __init__(self, code: list[str], processes: int, say=lambda line: None):
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self.lines: dict[str, dict[int, set[str]]] = {path: {} for path in code}
        files = sorted(set((ROOT / UNIT).glob("test_*.py")) - {ROOT / UNIT / "test_mutants.py"})
        self.texts = {path.name: path.read_text() for path in files}
        kept = {name: CACHE / f"{name}-{self._key(name)}.json" for name in self.texts}
        missing = {name: file for name, file in kept.items() if not file.exists()}
        if missing:
            say(f"recording which lines the tests of {len(missing)} files reach")
            CACHE.mkdir(parents=True, exist_ok=True)
            for old in set(CACHE.glob("test_*.json")) - set(kept.values()):
                old.unlink()

            def keep(name, record, output):
                if not isinstance(record, dict) or record["status"] not in (0, 1, 5):
                    raise RuntimeError(f"{name} {record if isinstance(record, str) else ''}:\n{output}")
                missing[name].write_text(json.dumps(record))
                say(f"recorded {name}")

            in_children([(name, partial(reached, f"{UNIT}/{name}", code)) for name in missing], processes, keep)
        for file in kept.values():
            record = json.loads(file.read_text())
            self.seconds |= record["seconds"]
            self.failed += record["failed"]
            for path in code:
                for line, tests in record["lines"].get(path, {}).items():
                    self.lines[path].setdefault(int(line), set()).update(tests)

    def _key(self, name: str) -> str:
        """Of what the record of a file of tests depends on: its text, that of what it imports, and the project's."""
        digest = hashlib.sha256()
        own = with_imports(ROOT / UNIT / name)
        for path in sorted([*own, *ROOT.glob("grsgd/**/*.py"), *ROOT.glob("coding/*.py")]):
            digest.update(f"{path.relative_to(ROOT)}\n{path.read_text()}\n".encode())
        return digest.hexdigest()[:16]

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
            naming = tuple(f"{UNIT}/{name}::" for name, text in self.texts.items() if stem in name or word.search(text))
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
