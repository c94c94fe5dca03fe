"""The environment of MPI jobs that this program starts."""

import re
from pathlib import Path

import pytest

from grsgd.mpi_environment import DEFAULTS, job_environment, without_launcher

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def test_make_sets_the_same():
    assert dict(re.findall(r"^export (\w+) \?= (\S+)$", MAKEFILE.read_text(), re.MULTILINE)) == DEFAULTS


def test_what_is_set_already_stays(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("OMPI_MCA_mpi_yield_when_idle", raising=False)
    environment = job_environment()
    assert environment["OMP_NUM_THREADS"] == "4" and environment["OMPI_MCA_mpi_yield_when_idle"] == "1"


@pytest.mark.parametrize(
    "name",
    "PMI_RANK PMIX_NAMESPACE OMPI_COMM_WORLD_RANK OMPI_UNIVERSE_SIZE PRTE_LAUNCHED HYDI_FD SLURM_JOB_ID".split(),
)
def test_a_job_of_its_own_knows_no_launcher(name):
    kept = {"PATH": "/bin", "OMPI_MCA_btl": "self", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    assert without_launcher(kept | {name: "1"}) == kept
