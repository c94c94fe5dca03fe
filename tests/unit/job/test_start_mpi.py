"""Start of MPI with a double of Cray MPICH."""

import sys
from types import SimpleNamespace

import pytest

from grsgd.errors import SetupError
from grsgd.job import foreign_launchers, start_mpi


@pytest.fixture
def cray(monkeypatch):
    """A Cray MPICH that has been asked for messages in GPU memory; a list of its calls."""
    calls = []
    library = "MPI VERSION    : CRAY MPICH version 8.1.30.8"
    mpi = SimpleNamespace(Get_library_version=lambda: library, Init_thread=lambda: calls.append("Init"))
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi, rc=SimpleNamespace()))
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", "1")
    return calls


def test_without_gtl_mpi_is_not_started(cray, monkeypatch):
    monkeypatch.setattr(start_mpi, "rank", lambda: "1")
    monkeypatch.setattr(foreign_launchers, "FIRST_SPEAKS_SECONDS", 0.0)
    with pytest.raises(SetupError, match="GTL is not linked, so Cray MPICH would abort the job: set LD_") as error:
        start_mpi.import_mpi()
    assert cray == [] and not error.value.is_printed


def test_with_gtl_mpi_is_started_once(cray, monkeypatch):
    monkeypatch.setattr(start_mpi, "abort_reason", lambda library: None)
    assert start_mpi.import_mpi().Get_library_version() and cray == ["Init"]
    assert sys.modules["mpi4py"].rc.finalize is True
