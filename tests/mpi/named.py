"""Functions of a script that are named on its command line."""

import sys

import torch
from mpi4py import MPI


def run_named(functions: dict):
    """Run each function of ``functions`` that the command line names; rank 0 prints its name if it comes to its end."""
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        functions[name]()
        if MPI.COMM_WORLD.rank == 0:
            print("done:", name, flush=True)
