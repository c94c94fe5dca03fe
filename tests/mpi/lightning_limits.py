"""Refusals, waits and metrics of the strategies of Lightning and of Fabric, on the ranks of a job.

Each function named on the command line is run, and prints its name if it comes to its end.
"""

import sys
import time
from pathlib import Path

import torch
import torchmetrics
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricScaled
from lightning.pytorch.callbacks import BaseFinetuning, LearningRateFinder
from lightning.pytorch.plugins import MixedPrecision as Scaled
from lightning.pytorch.tuner import Tuner
from lightning_jobs import COMM, DATA, RANKS, Language, fit, refusal, trainer
from torch import nn
from torch.utils.data import DataLoader

from grsgd.integrations.collective import Limit, wait_at_most
from grsgd.integrations.fabric import GrsgdFabricStrategy
from grsgd.integrations.lightning import GrsgdStrategy


def refuses_scalers():
    """Refuse a scaler, with which one rank possibly skips a step alone, if other ranks wait."""
    for algorithm in ("dpsgd", "local_sgd", "diloco", "ring_allreduce", "lasgd"):
        plugins = [kind("16-mixed", "cpu", torch.amp.GradScaler("cpu")) for kind in (Scaled, FabricScaled)]
        expected = f"precision='16-mixed' with {algorithm}: a rank whose gradient overflows skips its step"
        expected = expected if algorithm not in ("ring_allreduce", "lasgd") else "nothing"
        by = lambda plugin, name=algorithm: fit(Language, GrsgdStrategy(name), plugins=plugin)  # noqa: E731
        assert refusal(lambda by=by, plugins=plugins: by(plugins[0])).startswith(expected), algorithm
        fabric = Fabric(accelerator="cpu", strategy=GrsgdFabricStrategy(algorithm), devices=1, plugins=plugins[1])
        fabric.launch()
        net = nn.Linear(2, 1)
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        assert refusal(lambda fabric=fabric, net=net, sgd=sgd: fabric.setup(net, sgd)).startswith(expected), algorithm
        fabric.strategy.finish()


class Thaws(BaseFinetuning):
    """Callback that trains a layer from the second epoch on."""

    def freeze_before_training(self, module):
        self.freeze(module.layer)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.layer, optimizer)


def refuses_callbacks():
    for callback in (LearningRateFinder(num_training_steps=2), Thaws()):
        said = refusal(lambda callback=callback: fit(Language, GrsgdStrategy("dpsgd"), callbacks=[callback]))
        assert said.startswith(f"callback {type(callback).__name__} with grsgd: "), said
    said = refusal(lambda: Tuner(trainer(GrsgdStrategy("dpsgd"))).lr_find(Language(), DataLoader(DATA[Language], 8)))
    assert said.startswith("callback LearningRateFinder with grsgd: "), said


def has_metrics_of_all_in_fabric():
    """Compute metrics of each rank's own samples: inside a model, and moved by ``fabric.to_device``."""

    class Judged(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.mean = torchmetrics.MeanMetric()

    fabric = launched("dpsgd")
    net = Judged()
    model, _ = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
    alone = fabric.to_device(torchmetrics.MeanMetric())
    many = fabric.to_device(torchmetrics.MetricCollection([torchmetrics.SumMetric(), torchmetrics.MaxMetric()]))
    for metric in (net.mean, alone, many):
        metric.update(float(COMM.rank))
    mean, total = (RANKS - 1) / 2, RANKS * (RANKS - 1) / 2
    assert net.mean.compute() == alone.compute() == mean, (net.mean.compute(), alone.compute())
    assert {key: float(value) for key, value in many.compute().items()} == {"SumMetric": total, "MaxMetric": RANKS - 1}
    fabric.strategy.finish()


def lets_rank_0_go_first():
    fabric = launched("dpsgd")
    path = Path("made by rank 0")
    with fabric.strategy.rank_zero_first():
        if COMM.rank == 0:
            time.sleep(1)
            path.write_text("whole")
        assert path.read_text() == "whole"


def launched(*arguments, **options) -> Fabric:
    """Return a Fabric with a strategy of these arguments."""
    fabric = Fabric(accelerator="cpu", strategy=GrsgdFabricStrategy(*arguments, **options), devices=1)
    fabric.launch()
    return fabric


def waits_for_the_trainer():
    comes_late(trainer(GrsgdStrategy("dpsgd", timeout=100.0)).strategy)


def waits_for_fabric():
    comes_late(launched("dpsgd", timeout=100.0).strategy)


def comes_late(strategy):
    """Let rank 1 come to a barrier long after the limit of the other ranks, which is shortened after a broadcast."""
    assert Limit.seconds == 100
    strategy.broadcast("all ranks are here")
    wait_at_most(0.5)
    if COMM.rank == 1:
        time.sleep(20)
    strategy.barrier("of a late rank")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        globals()[name]()
        if COMM.rank == 0:
            print("done:", name, flush=True)
