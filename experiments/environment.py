"""The environment of MPI jobs that an experiment starts."""

import os

DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl": "^ofi",  # as it is put aside, this component sleeps for a second
    "OMPI_MCA_mpi_yield_when_idle": "1",  # ranks that wait must leave the cores to ranks that compute
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def environment() -> dict[str, str]:
    """This process's, and what it does not say: more ranks than cores, one thread each, also as root."""
    return DEFAULTS | os.environ
