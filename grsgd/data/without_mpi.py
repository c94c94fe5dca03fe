"""Module that worker processes import first. This import prevents the start of MPI when a worker process imports a
user's script."""

import mpi4py

mpi4py.rc.initialize = False
