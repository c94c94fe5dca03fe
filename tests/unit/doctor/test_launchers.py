"""Launchers as the doctor sees them."""

import os

import pytest

from grsgd.doctor import launchers
from grsgd.mpi_environment import without_launcher


@pytest.fixture
def launched(monkeypatch):
    """``launched(**variables)``: an environment of a launcher with these variables."""
    for name in {*os.environ} - {*without_launcher(os.environ)} | {"WORLD_SIZE", "HOROVOD_SIZE"}:
        monkeypatch.delenv(name, raising=False)

    def launched(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return launchers.facts(os.environ)

    return launched


@pytest.mark.parametrize(
    "variables, name, asked, interfaces",
    [
        ({}, "none", None, ()),
        ({"WORLD_SIZE": "8"}, "none", None, ()),
        ({"OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "x"}, "Open MPI's mpiexec", 4, ("PMIx",)),
        ({"PMI_SIZE": "4", "PMI_FD": "5", "MPI_LOCALNRANKS": "2"}, "mpiexec", 4, ("PMI",)),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "3", "PMIX_NAMESPACE": "x"}, "srun", 3, ("PMIx",)),
        ({"SLURM_STEP_NUM_TASKS": "3", "PMI_SIZE": "3", "PMI_FD": "5"}, "srun", 3, ("PMI",)),
        ({"SLURM_STEP_NUM_TASKS": "3", "PMI_FD": "5"}, "srun", 3, ("PMI2",)),
        ({"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI's mpiexec", 4, ()),
        ({"PALS_RANKID": "0", "PALS_APID": "x", "PALS_LOCAL_SIZE": "2"}, "mpiexec of PALS", None, ("PALS",)),
        ({"FLUX_JOB_SIZE": "8", "FLUX_TASK_RANK": "1"}, "Flux", 8, ("Flux",)),
    ],
)
def test_the_launcher_is_known_by_its_variables(variables, name, asked, interfaces, launched):
    found = launched(**variables)
    assert found[:3] == (name, asked, interfaces)


def test_ranks_found_and_asked_for(launched):
    found = launched(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0", SLURM_STEP_ID="3")
    values = {each.name: each.value for each in launchers.findings([found, found], 2, "Open MPI v5")}
    assert values["ranks"] == "2 found, 2 asked for" and values["details"] == "SLURM_STEP_ID=3"


@pytest.mark.parametrize(
    "variables, library, words",
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "Open MPI v5", ["srun started 4 tasks", "--mpi=pmix"]),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "MPICH 5", ["srun started 4 tasks", "--mpi=pmi2"]),
        ({"PMI_SIZE": "3", "PMI_RANK": "0"}, "Open MPI v5", ["mpiexec started 3", "whose launcher this is not"]),
    ],
)
def test_singletons_and_a_wrong_pmi_hurt(variables, library, words, launched):
    found = launchers.findings([launched(**variables)], 1, library)[-1]
    assert found.verdict == "hurts" and all(word in f"{found.value}: {found.remedy}" for word in words), found
