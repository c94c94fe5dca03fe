"""Which package may import which: the ones before it in ``ORDER``, never those after it or beside it."""

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = """errors text units files control_groups memory machine lazy mpi_environment seeding options outside runs
    tasks data models comm algorithms config training job simulator,own_loop,testbed testing,integrations,doctor cli
    __init__ __main__"""
LEVELS = {name: level for level, names in enumerate(ORDER.split()) for name in names.split(",")}
FILES = sorted(path for package in ("grsgd", "coding") for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of the modules of the project, and of names in them, that ``path`` imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("grsgd", "coding", "experiments", "tests", "slurm")}


def may_import(path: Path, name: str) -> bool:
    """Whether the module at ``path``, relative to the project, may import ``name``."""
    package, *rest = name.split(".")
    if path.parts[0] == "coding":
        return package == "coding"
    here = Path(path.parts[1]).stem
    if package == "coding":
        return LEVELS[here] >= LEVELS["comm"]
    if name in ("grsgd.__version__", "grsgd.__doc__"):
        return True
    target = rest[0] if rest[0] in LEVELS else "__init__"
    return package == "grsgd" and (target == here or LEVELS[target] < LEVELS[here])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_upwards(path):
    relative = path.relative_to(ROOT)
    assert [name for name in sorted(imported(path)) if not may_import(relative, name)] == []


VIEWS = "grsgd.runs.views"
"""A run's methods that show it import this file, which imports runs."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def nearest(name: str, modules: Collection[str]) -> str:
    """Return the module in which a name is, or which it is."""
    return name if name in modules else nearest(name.rpartition(".")[0], modules)


def test_no_files_import_each_other():
    """Not in a circle either, nor inside a package, nor inside a function."""
    modules = {module_of(path): path for path in FILES}
    reached = {name: {nearest(used, modules) for used in imported(path)} for name, path in modules.items()}
    reached["grsgd.runs.run_file"].discard(VIEWS)
    graph = {name: {one for one in used if not f"{name}.".startswith(f"{one}.")} for name, used in reached.items()}
    while ends := {name for name, used in graph.items() if not used & graph.keys()}:
        graph = {name: used for name, used in graph.items() if name not in ends}
    while begins := graph.keys() - set().union(*graph.values()):
        graph = {name: used for name, used in graph.items() if name not in begins}
    assert not graph


def test_every_package_has_its_level():
    there = {path.relative_to(ROOT / "grsgd").parts[0].removesuffix(".py") for path in (ROOT / "grsgd").rglob("*.py")}
    assert there == set(LEVELS)


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_of_tests_is_imported(path):
    """What two of them need is in ``tests/support``."""
    modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    assert [name for name in modules if name.split(".")[-1].startswith("test_")] == []
