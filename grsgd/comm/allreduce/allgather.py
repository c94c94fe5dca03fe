"""All-gather: every rank receives the arrays of all other ranks.

A schedule is a generator that yields each object it waits for.
"""

from collections.abc import Sequence

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator


def ring_allgather(comm: Communicator, parts: Sequence, tag: int = tags.ARRAYS):
    """Schedule that copies ``parts[i]`` of each rank i to ``parts[i]`` of all other ranks. All parts have the same
    length on all ranks.

    The ranks form a ring. In step s, rank i sends part i - s to its right neighbour. From step 1 on, this part came
    from the left neighbour in the step before. Each of the n ranks sends n - 1 parts.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(n - 1):
        sent, received = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        yield comm.Irecv(received, left, tag), comm.Isend(sent, right, tag)
