"""Import of this module keeps MPI from starting in a process that imports a user's script again, such as a worker."""

import mpi4py

mpi4py.rc.initialize = False
