"""Check of whether a model and all arrays of its size fit into memory, before they are allocated."""

import math

import torch

from grsgd import memory
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.runs.numbers import human_bytes
from grsgd.training.inputs import Images, build_model

MODEL_SIZED_ARRAYS = 10
"""Approximate number of arrays of the model's size that a rank holds: parameters, gradients, momenta, messages."""


def blueprint(config: Config, images: Dataset | Images) -> torch.nn.Module:
    """Return the model of ``config`` without content, which takes no memory; raises ConfigError."""
    with torch.device("meta"):
        return build_model(config, images, torch.device("meta"))


def rank_bytes(model: torch.nn.Module, config: Config, ranks: int) -> int:
    """Return the approximate number of bytes of all arrays of the size of ``model`` on a rank: parameters, gradients,
    and the arrays of the optimizer and the algorithm.

    The number is rather too small: measurements found 2 to 7 more arrays of the model's size in MPI, evaluation and the
    allocator.
    """
    itemsize = getattr(torch, config.dtype).itemsize
    algorithm, arrays = config.algorithm_class, MODEL_SIZED_ARRAYS
    if issubclass(algorithm, CommonBatchAlgorithm):
        arrays += algorithm.block_arrays(config.algorithm_options, ranks)
    return arrays * itemsize * sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])


def check_fits(config: Config, dataset: Dataset, ranks: int, local_ranks: int, device: torch.device):
    """Raise ConfigError if the arrays that the ranks of this host are about to allocate exceed the available memory.

    ``ranks`` is the number of ranks of the job, and ``local_ranks`` is the number of ranks on this host.
    """
    model = blueprint(config, dataset)
    each, sharing, where = rank_bytes(model, config, ranks), local_ranks, "on this host"
    if device.type == "cuda":
        sharing, where = math.ceil(local_ranks / torch.cuda.device_count()), f"on {device}"
        there = torch.cuda.mem_get_info(device)[0]
    else:
        there = memory.available()
    if sharing * each > there:
        parameters = sum(p.numel() for p in model.parameters())
        all_of_them = f", {human_bytes(sharing * each)} {where} ({sharing} ranks)" if sharing > 1 else ""
        raise ConfigError(
            f"model.name = {config.model.name!r}: {parameters:,} parameters, with gradients, optimizer and messages of "
            f"{config.algorithm.name}, take about {human_bytes(each)} per rank{all_of_them}, and {human_bytes(there)} "
            f"are free {where}: take a smaller model or fewer ranks per host"
        )
