"""Optional libraries that are not installed."""

import subprocess
import sys

import pytest

from grsgd.errors import MissingLibrary
from grsgd.integrations.libraries import needed


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(MissingLibrary, match=r'^the library no_such is not installed: pip install "grsgd\[tables\]"$'):
        with needed("tables"):
            import no_such  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'math'"):
        with needed("tables"):
            from math import nothing  # noqa: F401


BLOCKED = """
import sys
from importlib.abc import MetaPathFinder


class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, Missing())
import grsgd.integrations.{module}
"""


@pytest.mark.parametrize(
    "module, library, extra",
    [
        ("lightning", "lightning", "lightning"),
        pytest.param("fabric", "lightning", "lightning", marks=pytest.mark.exhaustive),
        pytest.param("accelerate", "accelerate", "transformers", marks=pytest.mark.exhaustive),
        ("transformers", "transformers", "transformers"),
    ],
)
def test_a_script_ends_with_one_line(module, library, extra):
    script = BLOCKED.format(library=library, module=module)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and done.stderr.endswith(f'pip install "grsgd[{extra}]"\n'), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("grsgd: ") and library in done.stderr, done.stderr


def test_a_library_of_another_version_is_to_be_upgraded(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    line = "^the installed version of torch has no module torch.no_such: pip install --upgrade"
    with pytest.raises(MissingLibrary, match=line):
        with needed("lightning"):
            import torch.no_such  # noqa: F401


def test_the_handler_of_errors_that_a_job_has_stays(monkeypatch):
    before = monkeypatch.setattr(sys, "excepthook", sys.excepthook) or sys.excepthook
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys)
    with pytest.raises(MissingLibrary):
        with needed("lightning"):
            import no_such  # noqa: F401
    assert sys.excepthook is before
