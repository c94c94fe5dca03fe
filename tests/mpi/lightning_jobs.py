"""Trainings of Lightning on the ranks of a job: by strategies of grsgd, by Lightning's DDP, and by a plain loop.

Each function named on the command line is run, and prints its name if it comes to its end.
"""

import warnings
from pathlib import Path

import lightning
import torch
import torchmetrics
from lightning.fabric import Fabric
from lightning.fabric.strategies import STRATEGY_REGISTRY
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from mpi4py import MPI
from named import run_named
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import grsgd
from grsgd.algorithms.base import ALGORITHMS
from grsgd.errors import UsageError
from grsgd.integrations import algorithms
from grsgd.integrations.fabric import GrsgdFabricStrategy
from grsgd.integrations.lightning import GrsgdStrategy

COMM = MPI.COMM_WORLD
RANKS = COMM.size
SMALL = 1e-6
"""Largest difference of float32 parameters that counts as equal."""
cross_entropy = nn.functional.cross_entropy


def tensors(samples: int, seed: int) -> TensorDataset:
    images = torch.randn(samples, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(images, (images.sum((1, 2, 3)) > 0).long())


class Classifier(lightning.LightningModule):
    """Images, BatchNorm, a scheduler per step, and a metric of torchmetrics."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(4 * 36, 2)
        self.right = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
        self.seen = []

    def forward(self, images):
        return self.last(self.net(images))

    def training_step(self, batch, _):
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        outputs = self(batch[0])
        self.right(outputs, batch[1])
        self.log("right", self.right)
        self.log("val", cross_entropy(outputs, batch[1]), sync_dist=True)
        self.seen.append(self.last.weight.detach().clone())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01, eps=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Language(lightning.LightningModule):
    """Language model with tied weights."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.last = nn.Linear(16, 11, bias=False)
        self.last.weight = self.letters.weight

    def training_step(self, batch, _):
        text = batch[0]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1] - 1)
        outputs = self.last(self.layer(self.letters(text[:, :-1]), mask, is_causal=True))
        return cross_entropy(outputs.flatten(0, 1), text[:, 1:].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


class Gan(lightning.LightningModule):
    """Two networks, each with an optimizer of its own, in manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.makes = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.judges = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        real, noise = batch[0], torch.randn(len(batch[0]), 8)
        judged = nn.functional.softplus
        of_maker, of_judge = self.optimizers()
        for optimizer, loss in (
            (of_maker, lambda: judged(-self.judges(self.makes(noise))).mean()),
            (of_judge, lambda: (judged(-self.judges(real)) + judged(self.judges(self.makes(noise).detach()))).mean()),
        ):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9) for net in (self.makes, self.judges)], []


LETTERS = TensorDataset(torch.randint(0, 11, (144, 12), generator=torch.Generator().manual_seed(1)))
REAL = TensorDataset(torch.randn(144, 4, generator=torch.Generator().manual_seed(2)))
DATA = {Classifier: tensors(144, 1), Language: LETTERS, Gan: REAL}


def trainer(strategy, devices=1, **options) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "max_epochs": 2, "num_sanity_val_steps": 0}
    return lightning.Trainer(accelerator="cpu", devices=devices, strategy=strategy, **quiet | options)


def fit(kind, strategy, devices=1, path=None, **options):
    """Return the trained module, and its trainer."""
    lightning.seed_everything(3, verbose=False)
    module = kind()
    lightning.seed_everything(4, verbose=False)
    done = trainer(strategy, devices, **options)
    validation = [DataLoader(tensors(60, 2), 8)] if kind is Classifier else []
    done.fit(module, DataLoader(DATA[kind], 8, shuffle=True), *validation, ckpt_path=path)
    return module, done


def difference(module: nn.Module, other: nn.Module) -> float:
    return max((a - b).abs().max().item() for a, b in zip(module.parameters(), other.parameters(), strict=True))


def is_on_all(module: nn.Module) -> bool:
    """Return whether all ranks have one model, and the same buffers."""
    digest = torch.cat([value.double().flatten() for value in module.state_dict().values()]).numpy().tobytes()
    return len(set(COMM.allgather(digest))) == 1


WAYS = {
    Classifier: {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    Language: {"accumulate_grad_batches": 3, "gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    Gan: {},
}


def equals_ddp():
    for kind, options in WAYS.items():
        for precision in ("32-true", "bf16-mixed"):
            options |= {"precision": precision}
            ours, by_ours = fit(kind, "grsgd_ring_allreduce", **options)
            theirs, by_theirs = fit(
                kind, DDPStrategy(process_group_backend="gloo", find_unused_parameters=kind is Gan), RANKS, **options
            )
            allowed = SMALL if precision == "32-true" else 1e-3
            assert difference(ours, theirs) <= allowed and is_on_all(ours), (kind, precision, difference(ours, theirs))
            if kind is Classifier:
                assert abs(by_ours.callback_metrics["loss"] - by_theirs.callback_metrics["loss"]) < allowed
                assert len(set(COMM.allgather(float(by_ours.callback_metrics["right"])))) == 1


def batches(kind):
    """Yield this rank's batches of two epochs, as Lightning draws them."""
    lightning.seed_everything(4, verbose=False)
    sampler = DistributedSampler(DATA[kind], RANKS, COMM.rank, seed=4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        yield from DataLoader(DATA[kind], 8, sampler=sampler)


def plain_classifier(module, algorithm: str, **options):
    optimizer = torch.optim.AdamW(module.parameters(), 0.01, eps=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    optimizer = grsgd.distribute(module, optimizer, algorithm, **options)
    for images, labels in batches(Classifier):
        optimizer.zero_grad()
        cross_entropy(module(images), labels).backward()
        optimizer.step()
        schedule.step()
    optimizer.finish()


def plain_language(module, algorithm: str, **options):
    optimizer = grsgd.distribute(module, module.configure_optimizers(), algorithm, **options)
    for batch in batches(Language):
        optimizer.zero_grad()
        module.training_step(batch, 0).backward()
        optimizer.step()
    optimizer.finish()


def plain_gan(module, algorithm: str, **options):
    """Train the networks as `Gan.training_step` does, which gets its optimizers from this loop."""
    nets = module.makes, module.judges
    optimizers = [
        grsgd.distribute(net, sgd, algorithm, **options)
        for net, sgd in zip(nets, module.configure_optimizers()[0], strict=True)
    ]
    module.optimizers, module.manual_backward = lambda: optimizers, torch.Tensor.backward
    module.toggle_optimizer = module.untoggle_optimizer = lambda optimizer: None
    for batch in batches(Gan):
        module.training_step(batch, 0)
    for optimizer in optimizers:
        optimizer.finish()


PLAIN = {Classifier: plain_classifier, Language: plain_language, Gan: plain_gan}


def check_plain(kind, algorithm: str, **options):
    """Train by Lightning and by a plain loop, and compare the parameters bit for bit."""
    ours, _ = fit(kind, GrsgdStrategy(algorithm, **options))
    lightning.seed_everything(3, verbose=False)
    plain = kind()
    PLAIN[kind](plain, algorithm, **options)
    assert difference(ours, plain) == 0 and is_on_all(ours), (kind, algorithm, difference(ours, plain))


def equals_a_plain_loop():
    for kind in WAYS:
        for algorithm, options in (("dpsgd", {}), ("diloco", {"H": 4})):
            check_plain(kind, algorithm, **options)
    for algorithm in ("grsgd", "lasgd"):  # their results depend on the times at which messages arrive
        for kind in WAYS:
            assert is_on_all(fit(kind, GrsgdStrategy(algorithm))[0]), (algorithm, kind)


def equals_a_plain_loop_alone():
    """Compare asynchronous algorithms, on one rank, where no message makes their results differ."""
    for algorithm in ("grsgd", "lasgd"):
        for kind in WAYS:
            check_plain(kind, algorithm)


def goes_on_from_a_checkpoint():
    for algorithm in ("ring_allreduce", "dpsgd"):
        kept = ModelCheckpoint("kept", f"{algorithm}-{{epoch}}", every_n_epochs=1, save_top_k=-1)
        options = {"enable_checkpointing": True, "max_epochs": 4, "callbacks": [kept]}
        whole, _ = fit(Classifier, GrsgdStrategy(algorithm), **options)
        again, _ = fit(Classifier, GrsgdStrategy(algorithm), path=f"kept/{algorithm}-epoch=1.ckpt", **options)
        assert difference(whole, again) == 0 and is_on_all(again), algorithm
        averaged = torch.load(f"kept/{algorithm}-epoch=1.ckpt", weights_only=False)["state_dict"]
        assert len(set(COMM.allgather(again.seen[-1].numpy().tobytes()))) == 1, "all validate the average"
        assert averaged.keys() == again.state_dict().keys()
    first = [path for path in Path("kept").glob("*.ckpt") if "-v" not in path.stem]
    assert len(first) == 8, "one file for all ranks"
    other, _ = fit(Classifier, GrsgdStrategy("local_sgd"), path="kept/dpsgd-epoch=1.ckpt", max_epochs=3)
    assert is_on_all(other)


class OfItsRank(EarlyStopping):
    """Early stopping by a number that only rank 0 sees getting worse."""

    def _run_early_stopping_check(self, trainer):
        trainer.callback_metrics["mine"] = torch.tensor(float(trainer.current_epoch * (COMM.rank == 0)))
        super()._run_early_stopping_check(trainer)


def stops_everywhere():
    _, done = fit(Classifier, GrsgdStrategy("dpsgd"), callbacks=[OfItsRank("mine", patience=1)], max_epochs=6)
    assert COMM.allgather(done.current_epoch) == [2] * RANKS


def has_metrics_of_all():
    strategy = trainer(GrsgdStrategy("dpsgd")).strategy
    own = torch.tensor([COMM.rank, 1])
    assert strategy.reduce(own, reduce_op="sum").tolist() == [RANKS * (RANKS - 1) // 2, RANKS]
    assert strategy.reduce(own.double()).tolist() == [(RANKS - 1) / 2, 1]
    assert strategy.reduce(own, reduce_op=torch.distributed.ReduceOp.MAX).tolist() == [RANKS - 1, 1]
    narrow = strategy.reduce(own.to(torch.bfloat16), reduce_op="sum")
    assert narrow.dtype == torch.bfloat16 and narrow[1] == RANKS
    assert strategy.reduce(own > -1, reduce_op="sum").tolist() == [RANKS, RANKS]
    assert strategy.all_gather(own).shape == (RANKS, 2)
    assert strategy.broadcast(f"of rank {COMM.rank}", RANKS - 1) == f"of rank {RANKS - 1}"
    assert strategy.reduce_boolean_decision(COMM.rank == 0) == (RANKS == 1)
    assert strategy.reduce_boolean_decision(COMM.rank == 0, all=False)
    assert strategy.distributed_sampler_kwargs == {"num_replicas": RANKS, "rank": COMM.rank}


def with_fabric(strategy, devices=1, path=None, save=None) -> nn.Module:
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=devices)
    fabric.launch()
    fabric.seed_everything(3, verbose=False)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    state = {"model": model, "optimizer": optimizer, "batches": 0}
    if path:
        fabric.load(path, state)
    for number, (images, labels) in enumerate(fabric.setup_dataloaders(DataLoader(tensors(96, 1), 4)), 1):
        if number <= state["batches"]:
            continue
        with fabric.no_backward_sync(model, number % 3 != 0):
            fabric.backward(cross_entropy(model(images), labels))
        if number % 3 == 0:
            fabric.clip_gradients(model, optimizer, max_norm=0.1)
            optimizer.step()
            optimizer.zero_grad()
        if number == 6 and save:
            fabric.save(save, state | {"batches": number})
            fabric.barrier()
    if isinstance(strategy, GrsgdFabricStrategy):
        strategy.finish()
    return net


def works_in_fabric():
    for algorithm in ("ring_allreduce", "dpsgd"):
        whole = with_fabric(GrsgdFabricStrategy(algorithm), save="fabric.ckpt")
        again = with_fabric(GrsgdFabricStrategy(algorithm), path="fabric.ckpt")
        assert difference(whole, again) == 0 and is_on_all(again), algorithm
        if algorithm == "ring_allreduce":
            assert difference(whole, with_fabric(FabricDDP(process_group_backend="gloo"), RANKS)) <= SMALL
    if COMM.rank == 0:  # a file of another number of ranks
        kept = torch.load("fabric.ckpt", weights_only=False)
        kept["grsgd"]["ranks"] = kept["grsgd"]["ranks"][:1] * (RANKS + 1)
        torch.save(kept, "other.ckpt")
        kept = torch.load("fabric.ckpt", weights_only=False)
        torch.save(kept | {"grsgd": kept["grsgd"]["ranks"]}, "older.ckpt")  # as an earlier version has written it
    COMM.Barrier()
    assert difference(whole, with_fabric(GrsgdFabricStrategy("dpsgd"), path="older.ckpt")) == 0
    for path, algorithm, was in (("other.ckpt", "dpsgd", RANKS + 1), ("fabric.ckpt", "diloco", RANKS)):
        line = f"the checkpoint is of dpsgd on {was} ranks, this job trains with {algorithm} on {RANKS}: all ranks"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert is_on_all(with_fabric(GrsgdFabricStrategy(algorithm), path=path)), path
        assert any(line in str(each.message) for each in caught) == (COMM.rank == 0), path
    fabric = Fabric(accelerator="cpu", strategy="grsgd_dpsgd", devices=1)
    fabric.launch()
    nets = [nn.Linear(2, 1), nn.Linear(2, 1)]  # each is set up by a call of its own
    for net in nets:
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.1))
        fabric.backward(model(torch.full((1, 2), float(COMM.rank))).square().sum())
        optimizer.step()
    fabric.strategy.finish()
    assert all(map(is_on_all, nets))


def refusal(call) -> str:
    """Return the message with which ``call`` is refused."""
    try:
        call()
    except (UsageError, RuntimeError) as error:
        return str(error)
    return "nothing"


def refuses_what_cannot_work():
    for registry in (StrategyRegistry, STRATEGY_REGISTRY):
        assert {each.removeprefix("grsgd_") for each in registry if each.startswith("grsgd_")} == ALGORITHMS.keys()
    assert {"dpsgd", "ring_allreduce", "lasgd", "diloco"} < {*algorithms.names()} < ALGORITHMS.keys()
    for name in ALGORITHMS.keys() - algorithms.names():
        assert name in refusal(lambda name=name: GrsgdStrategy(name)), name
        assert name in refusal(lambda name=name: GrsgdFabricStrategy(name)), name
    assert refusal(lambda: GrsgdStrategy(validate="best")) == "validate = 'best': allowed: 'average', 'own'"
    batchnorm = lambda: fit(Classifier, GrsgdStrategy(), sync_batchnorm=True)  # noqa: E731
    assert refusal(batchnorm).startswith("sync_batchnorm=True: grsgd exchanges no statistics")
    assert "dpsgd: topologi: unknown key" in refusal(lambda: fit(Classifier, GrsgdStrategy("dpsgd", topologi="ring")))
    strategy = GrsgdStrategy()
    assert refusal(lambda: strategy.reduce(torch.ones(1), reduce_op="median")).startswith("reduction 'median'")
    tensor = torch.ones(1, requires_grad=True)
    assert refusal(lambda: strategy.all_gather(tensor, sync_grads=True)).startswith("all_gather(sync_grads=True)")
    fabric = Fabric(accelerator="cpu", strategy=GrsgdFabricStrategy(), devices=1)
    fabric.launch()
    alone = fabric.setup_module(nn.Linear(1, 1))
    assert "does not support setting up the module" in refusal(
        lambda: fabric.setup_optimizers(torch.optim.SGD(alone.parameters()))
    )


def fails_on_one_rank():
    class Fails(Classifier):
        def training_step(self, batch, number):
            if COMM.rank == 1 and number == 3:
                raise ValueError("a fault of mine")
            return super().training_step(batch, number)

    DATA[Fails] = DATA[Classifier]
    fit(Fails, GrsgdStrategy("dpsgd"))


if __name__ == "__main__":
    run_named(globals())
