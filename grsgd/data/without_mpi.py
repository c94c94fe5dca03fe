"""Module that worker processes import first. The import of this module prevents the start of MPI when a worker process
imports a user's script."""

import mpi4py

mpi4py.rc.initialize = False
