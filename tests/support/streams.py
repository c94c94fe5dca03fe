"""Data sets for tests, which the worker processes of ranks import. This module imports no MPI."""

import torch
from torch.utils.data import IterableDataset, TensorDataset

SAMPLES = 13


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * SAMPLES, dtype=torch.float64).reshape(SAMPLES, 4)


class Stream(IterableDataset):
    """Data set that yields `SAMPLES` inputs, each in a tuple, as `numbered` has them."""

    def __iter__(self):
        return iter(numbered())


def numbered() -> TensorDataset:
    return TensorDataset(inputs())
