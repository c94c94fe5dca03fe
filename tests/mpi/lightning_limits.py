"""Refusals, waits and metrics of the strategies of Lightning and of Fabric, on the ranks of a job.

Each function named on the command line is run, and prints its name if it comes to its end.
"""

import time
import warnings
from pathlib import Path

import torch
import torchmetrics
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricScaled
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
)
from lightning.pytorch.plugins import MixedPrecision as Scaled
from lightning.pytorch.tuner import Tuner
from lightning_jobs import COMM, DATA, RANKS, Language, fit, is_on_all, refusal, trainer
from named import run_named
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
        if expected == "nothing":
            fabric.strategy.finish()


def trains_in_16_bits():
    for precision, dtype in (("bf16-true", torch.bfloat16), ("16-true", torch.float16)):
        for algorithm in ("ring_allreduce", "dpsgd", "lasgd"):
            module, _ = fit(Language, GrsgdStrategy(algorithm), precision=precision)
            assert {each.dtype for each in module.parameters()} == {dtype} and is_on_all(module), algorithm
            assert all(each.isfinite().all() for each in module.parameters()), (precision, algorithm)


def warns_of_devices_and_hosts():
    in_fabric = lambda **given: launched(**given).strategy  # noqa: E731
    for made in (lambda **given: trainer(GrsgdStrategy(), **given).strategy, in_fabric):
        for given in ({"devices": 5}, {"num_nodes": 7}, {"devices": RANKS}):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                made(**given).setup_environment()
            said = " ".join(str(each.message) for each in caught if "job's ranks" in str(each.message))
            if COMM.rank or given == {"devices": RANKS}:
                assert not said, said
            elif given == {"devices": 5}:
                assert f"Lightning has 5 devices on this host, but {RANKS} of the job's ranks" in said, said
            else:
                assert "num_nodes=7, but the job's ranks are on 1 host(s)" in said, said


def misspells_an_algorithm():
    GrsgdStrategy("dpsdg")


def misspells_in_fabric():
    GrsgdFabricStrategy("dpsdg")


def misspells_a_model():
    GrsgdStrategy(validate="best")


def misspells_an_option():
    fit(Language, GrsgdStrategy("dpsgd", tiemout=3))


def ends_a_training_without_a_step():
    """Go on from the checkpoint of a training that has no step left, as a resubmitted job of Slurm does."""
    for algorithm in ("dpsgd", "lasgd"):
        saver = lambda name=algorithm: ModelCheckpoint(name, save_last=True)  # noqa: E731
        _, done = fit(Language, GrsgdStrategy(algorithm), enable_checkpointing=True, callbacks=[saver()])
        path = done.checkpoint_callback.last_model_path
        again, idle = fit(Language, GrsgdStrategy(algorithm), path=path)
        assert all(optimizer.finished for optimizer in idle.strategy.distributed), algorithm
        assert is_on_all(again), algorithm
        idle.fit_loop.max_epochs = 3
        idle.fit(again, DataLoader(DATA[Language], 8))
        assert is_on_all(again), algorithm


def goes_on_with_averaged_weights():
    options = {"enable_checkpointing": True, "max_epochs": 1}
    for algorithm in ("ring_allreduce", "dpsgd"):
        saver = ModelCheckpoint(f"averaged-{algorithm}", save_last=True)
        fit(Language, GrsgdStrategy(algorithm), callbacks=[saver, EMAWeightAveraging()], **options)
        again, _ = fit(Language, GrsgdStrategy(algorithm), path=saver.last_model_path, callbacks=[EMAWeightAveraging()])
        assert is_on_all(again), algorithm


def refuses_a_model_without_its_optimizer():
    fabric = launched("dpsgd")
    model = fabric.setup_module(nn.Linear(2, 1))
    fabric.backward(model(torch.ones(1, 2)).sum())
    said = refusal(fabric.strategy.finish)
    assert said == "each rank trains alone: give fabric.setup() the model with its optimizers in one call", said


class Thaws(BaseFinetuning):
    """Callback that trains a layer from the second epoch on."""

    def freeze_before_training(self, module):
        self.freeze(module.layer)

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.layer, optimizer)


def refuses_callbacks():
    for callback in (LearningRateFinder(num_training_steps=2), Thaws(), ModelPruning("l1_unstructured", amount=0.1)):
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


def launched(algorithm="ring_allreduce", timeout=None, **options) -> Fabric:
    """Return a Fabric with a strategy of this algorithm."""
    given = {} if timeout is None else {"timeout": timeout}
    strategy = GrsgdFabricStrategy(algorithm, **given)
    fabric = Fabric(accelerator="cpu", strategy=strategy, **{"devices": 1} | options)
    fabric.launch()
    return fabric


def leaves_out_finish():
    net = nn.Linear(2, 1)
    model, optimizer = launched("dpsgd").setup(net, torch.optim.SGD(net.parameters(), 0.1))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


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
    run_named(globals())
