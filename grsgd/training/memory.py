"""Check before training whether the model and all other arrays of its size fit into memory."""

import math
from typing import NamedTuple

import torch

from grsgd import memory, outside
from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.errors import ConfigError
from grsgd.runs.numbers import human_bytes
from grsgd.training.inputs import Images, build_model
from grsgd.training.optimizer import build_optimizer

OTHER_ARRAYS = 4
"""Assumed number of further arrays of the model's size that a rank holds in MPI, averages, evaluation and the memory
allocator. In measurements, a rank held 2 to 7 further arrays of the model's size."""
FLOAT32_BYTES = torch.float32.itemsize
TRIED = 32, 32
"""Shape of a parameter with which `optimizer_bytes` tries a step of the optimizer, to count the bytes of its state."""


class BytesPerParameter(NamedTuple):
    """Numbers of bytes per trained parameter that a rank holds in memory between two steps, by purpose.

    ``outer`` is the number of bytes that the algorithm holds in host memory if the model is in GPU memory.
    """

    model: float
    gradient: float
    optimizer: float
    algorithm: float
    outer: float

    @property
    def on_device(self) -> float:
        """Number of bytes per parameter in the memory of the model's device. The bytes of the gradient are included,
        although autograd may free the gradient."""
        return self.model + self.gradient + self.optimizer + self.algorithm


def bytes_per_parameter(config: Config, ranks: int, on_gpu: bool = False) -> BytesPerParameter:
    """Return the numbers of bytes per trained parameter of a run on ``ranks`` ranks. ``on_gpu`` says whether the models
    are in GPU memory."""
    dtype, options = getattr(torch, config.dtype), config.algorithm_options
    held, outer = config.algorithm_class.arrays_held(options, ranks), 0
    if on_gpu and getattr(options, "outer_state", None) == "host":
        held, outer = config.algorithm_class.arrays_apart(options, ranks)
    each, kept = dtype.itemsize, optimizer_bytes(config, dtype)
    of_algorithm = each * held
    if dtype is torch.bfloat16:
        wide, further = config.algorithm_class.arrays_in_32_bits(options, ranks)
        of_algorithm = each * (held - wide) + FLOAT32_BYTES * (wide + further)
    return BytesPerParameter(each, each, kept, of_algorithm, each * outer)


def optimizer_bytes(config: Config, dtype: torch.dtype) -> float:
    """Return the number of bytes per parameter of the optimizer's state after its first step, measured with one
    parameter.

    A user's own optimizer is not measured. The state of a user's own optimizer is assumed to have two numbers per
    parameter.
    """
    if outside.is_outside(config.optimizer.name):
        return 2 * dtype.itemsize
    parameter = torch.nn.Parameter(torch.zeros(TRIED, dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(config.optimizer, [parameter])
    optimizer.step()
    kept = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor)) // parameter.numel()


def blueprint(config: Config, images: Dataset | Images) -> torch.nn.Module:
    """Return the model of ``config`` on torch's device ``meta``, where tensors have no content and take no memory.
    Raises ConfigError if the model cannot be built."""
    with torch.device("meta"):
        return build_model(config, images, torch.device("meta"))


def rank_bytes(model: torch.nn.Module, config: Config, ranks: int, on_gpu: bool = False) -> int:
    """Return the approximate number of bytes that a rank needs for ``model`` in the memory of its device. The result
    includes parameters, gradients, the arrays of optimizer and algorithm, and further arrays (`OTHER_ARRAYS`)."""
    itemsize = getattr(torch, config.dtype).itemsize
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    others = sum(p.numel() for p in model.parameters() if not p.requires_grad) + sum(b.numel() for b in model.buffers())
    each = bytes_per_parameter(config, ranks, on_gpu).on_device + OTHER_ARRAYS * itemsize
    return math.ceil(each * trained) + itemsize * others


def check_fits(config: Config, dataset: Dataset, ranks: int, local_ranks: int, device: torch.device):
    """Raise ConfigError if the arrays that the ranks of this host are about to allocate exceed the available memory.

    ``ranks`` is the number of ranks of the job, and ``local_ranks`` is the number of ranks on this host.
    """
    model = blueprint(config, dataset)
    on_gpu = device.type == "cuda"
    each, sharing, where = rank_bytes(model, config, ranks, on_gpu), local_ranks, "on this host"
    if on_gpu:
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
