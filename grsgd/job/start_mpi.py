"""Start of MPI in this process, with a check for Cray MPICH on GPUs."""

import sys

from grsgd.job.foreign_launchers import refuse
from grsgd.machine.cray import abort_reason, wants_gpu
from grsgd.mpi_environment import rank


def import_mpi():
    """Return `mpi4py.MPI`, whose first import starts MPI.

    Raises SetupError on all ranks if Cray MPICH would abort the job, because GPU support is switched on and its GPU
    library (GTL) is missing.
    """
    if "mpi4py.MPI" not in sys.modules and wants_gpu():
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI

        if reason := abort_reason(MPI.Get_library_version()):
            refuse(reason, rank() in (None, "0"))
        MPI.Init_thread()
    from mpi4py import MPI

    return MPI
