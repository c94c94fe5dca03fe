"""Module that the fork server of worker processes imports first. This module stops MPI from starting when a worker
process imports a user's script again."""

import mpi4py

mpi4py.rc.initialize = False
