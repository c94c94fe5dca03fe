"""Refusals that all ranks raise alike."""

import subprocess
import sys

import pytest

from grsgd.errors import ConfigError, DataError, SetupError
from grsgd.integrations import refusals
from grsgd.integrations.refusals import refused_alike


@refused_alike()
def refuse(error: Exception):
    raise error


def test_errors_of_users_end_all_ranks(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for error in (ConfigError("a = 1: too small"), DataError("a = 1: too small")):
        with pytest.raises(SetupError, match="^a = 1: too small$") as caught:
            refuse(error)
        assert isinstance(caught.value, ConfigError) and caught.value.is_printed
    monkeypatch.setattr(refusals, "unfinished", [object()])
    with pytest.raises(DataError):
        refuse(DataError("a single rank possibly raises this"))
    told = SetupError("told by rank 0", is_printed=False)
    with pytest.raises(SetupError) as caught:
        refuse(told)
    assert caught.value is told
    with pytest.raises(ZeroDivisionError):
        refuse(ZeroDivisionError())


def test_a_script_ends_with_one_line():
    script = "from grsgd.integrations.lightning import GrsgdStrategy; GrsgdStrategy('dpsdg')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and done.stderr.startswith("grsgd: algorithm 'dpsdg': unknown (did you mean dpsgd?)")
    assert done.stderr.count("\n") == 1, done.stderr
