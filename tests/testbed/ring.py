"""On every rank: how fast a ring all-reduce is. Prints JSON: the median of its seconds by size in bytes."""

import json
import statistics
import sys
import time

import numpy as np

from grsgd import launch
from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.communicator import Communicator

mpi = launch.world()
launch.abort_on_error(mpi)
driver = launch.driver(mpi, timeout=60, progress="inline")
comm = Communicator(mpi.Dup())
medians = {}
for size in map(int, sys.argv[1:]):
    x = np.zeros(size // 4, np.float32)
    seconds = []
    for _ in range(7):
        launch.meet(mpi)
        begin = time.perf_counter()
        driver.run(ring_allreduce(comm, x))
        seconds.append(time.perf_counter() - begin)
    medians[size] = statistics.median(seconds[1:])
if mpi.rank == 0:
    print(json.dumps(medians))
