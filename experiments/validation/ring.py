"""Script that times ring all-reduces on the ranks of an MPI job.

Rank 0 prints JSON with the mean and the least seconds, by bytes of the array.
"""

import json
import sys
import time

import numpy as np

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.job import launch

mpi = launch.world()
launch.abort_on_error(mpi)
driver = launch.driver(mpi, timeout=60, progress_mode="inline")
comm = Communicator(MpiBackend(mpi.Dup()))
seconds = {}
for size in map(int, sys.argv[1:]):
    x = np.zeros(size // 4, np.float32)
    launch.barrier(mpi)
    ends = []
    for _ in range(8):  # without pauses, because an all-reduce ends only after all ranks have begun it
        driver.run(ring_allreduce(comm, x))
        ends.append(time.perf_counter())
    seconds[size] = (ends[-1] - ends[0]) / (len(ends) - 1), min(np.diff(ends))
if mpi.rank == 0:
    print(json.dumps(seconds))
