"""All-gather: every rank receives the arrays of all other ranks.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from collections.abc import Sequence

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator


def ring_allgather(comm: Communicator, parts: Sequence, tag: int = tags.ARRAYS):
    """Generator (schedule) that copies the array ``parts[i]`` of each rank i to ``parts[i]`` of all other ranks. All
    arrays in ``parts`` have the same length, on all ranks.

    The messages of the all-gather go round a ring of all ranks. In step s of the all-gather, rank i sends ``parts[i -
    s]`` to its right neighbour. In each step after step 0, a rank sends the part that it received from its left
    neighbour in the step before. During the whole all-gather, each of the n ranks sends n - 1 parts.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        sent, received = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        yield comm.Irecv(received, left, tag), comm.Isend(sent, right, tag)
