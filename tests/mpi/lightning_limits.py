"""What the strategies of Lightning and of Fabric refuse, and how long they wait, on the ranks of a job.

Each function named on the command line is run, and prints its name if it comes to its end.
"""

import sys
import time

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricScaled
from lightning.pytorch.plugins import MixedPrecision as Scaled
from lightning_jobs import COMM, Language, fit, refusal, trainer
from torch import nn

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


def launched(*arguments, **options) -> Fabric:
    """Return a Fabric with a strategy of these arguments."""
    fabric = Fabric(accelerator="cpu", strategy=GrsgdFabricStrategy(*arguments, **options), devices=1)
    fabric.launch()
    return fabric


def waits_for_the_trainer():
    comes_late(trainer(GrsgdStrategy("dpsgd", timeout=0.5)).strategy)


def waits_for_fabric():
    comes_late(launched("dpsgd", timeout=0.5).strategy)


def comes_late(strategy):
    """Let rank 1 come to a barrier long after the limit of the other ranks."""
    strategy.broadcast("all ranks are here")
    if COMM.rank == 1:
        time.sleep(20)
    strategy.barrier("of a late rank")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        globals()[name]()
        if COMM.rank == 0:
            print("done:", name, flush=True)
