"""Tests lie where one looks for them: those of grsgd/comm/mailbox.py in tests/unit/comm/test_mailbox.py."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
FILES = sorted(UNIT.rglob("test_*.py"))


def package_of(folder: Path) -> Path:
    """The package whose tests are in ``folder``: one of grsgd, coding or experiments."""
    parts = folder.relative_to(UNIT).parts
    return ROOT.joinpath(*parts) if parts[:1] in (("coding",), ("experiments",)) else ROOT.joinpath("grsgd", *parts)


def module_of(file: Path) -> str | None:
    """The module of the mirrored package that a file of tests names, or the package itself; None if it names neither.

    Words may follow that name, which say what the tests of the file are about.
    """
    package = package_of(file.parent)
    modules = {path.stem for path in (package, *package.glob("*.py")) if path.exists()}
    words = file.stem.removeprefix("test_").split("_")
    names = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return next((name for name in names if name in modules), None)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_of_tests_names_a_module_where_its_folder_mirrors(file):
    """Tests that cross packages are in tests/integration."""
    assert module_of(file) is not None, f"there is no such module in {package_of(file.parent).relative_to(ROOT)}"


def test_names_of_modules_may_be_followed_by_words():
    comm = UNIT / "comm"
    assert module_of(comm / "test_stop_signal.py") == "stop_signal"
    assert module_of(comm / "test_mailbox_of_strangers.py") == "mailbox"
    assert module_of(comm / "allreduce" / "test_allreduce.py") == "allreduce"
    assert module_of(UNIT / "test_seeding.py") == "seeding" and module_of(UNIT / "coding" / "test_cost.py") == "cost"
    assert module_of(comm / "test_seeding.py") is None and module_of(UNIT / "nowhere" / "test_nowhere.py") is None
