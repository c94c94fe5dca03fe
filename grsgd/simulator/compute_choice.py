"""Choice of the seconds that the computation of a simulated step takes. The seconds of a step are given by the user or
by the network file, or are measured."""

import numpy as np
import torch

from grsgd.config import Config
from grsgd.data import Dataset
from grsgd.simulator import compute as compute_times
from grsgd.simulator.compute import ComputeTime
from grsgd.simulator.network import NetworkSpec
from grsgd.training.batch_gradient import check_compiler
from grsgd.training.gradients import step_alone
from grsgd.training.inputs import build_model, in_own_code


def choose_compute_time(
    stated: tuple[str, list[float]] | None,
    config: Config,
    network: NetworkSpec,
    blueprint: torch.nn.Module,
    dataset: Dataset,
    device: torch.device,
) -> ComputeTime:
    """Return the `ComputeTime` of a simulated step that ``stated``, a result of `compute.parse`, describes. If
    ``stated`` is None, return the `ComputeTime` that the network file gives. If the network file gives no `ComputeTime`
    either, return `compute.DEFAULT`.

    The form ``measured`` means the `ComputeTime` in the network file or, if the network file gives none, a measurement
    on this machine. ``blueprint`` is a model whose parameters have shapes but no values.
    """
    form, numbers = stated or (None, [])
    if form in (None, "measured") and network.compute is not None:
        return ComputeTime.of(network.compute, config.seed)
    if form is None:
        form, numbers = compute_times.parse(compute_times.DEFAULT)
    if form == "flops":
        (sample, *_), _ = next(dataset.train.batches(iter([np.zeros(1, np.int64)])))
        advice = "its operations were not counted on a copy without content; --compute constant:SECONDS needs no count"
        with in_own_code(config, f"model.name = {config.model.name!r}: {advice}"):
            operations = compute_times.flops(blueprint, sample, config.data.batch_size)
        return ComputeTime(operations / numbers[0])
    if form == "lognormal":
        return ComputeTime(*numbers, seed=config.seed)
    if form == "constant":
        return ComputeTime(*numbers)
    check_compiler(config.gradient, device)
    gradient, update = step_alone(config, dataset, build_model(config, dataset, device))

    def step():
        gradient()
        update()

    return ComputeTime(*compute_times.measure(step), config.seed)
