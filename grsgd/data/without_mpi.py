"""Module that the fork server of worker processes imports first. The import of this module prevents the start of MPI
when a worker process imports a user's script again."""

import mpi4py

mpi4py.rc.initialize = False
