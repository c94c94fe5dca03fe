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
    script = f"import sys; sys.modules[{library!r}] = None; import grsgd.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and done.stderr.endswith(f'pip install "grsgd[{extra}]"\n'), done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("grsgd: ") and library in done.stderr, done.stderr
