"""Training scripts, for loops that grsgd did not write.

A row of `ROWS` is a script: a model, an optimizer and what it does in a step. Whoever adds one adds a cell a column.
"""

import copy
import io
import warnings
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import mse_loss

from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer
from tests.mpi.ranks.conftest import COUNT, WORLD


class Net(nn.Module):
    """Some layers more than a step may use; ``used``: by number, which the next forward pass goes through."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.more = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.last = nn.Linear(6, 2)
        self.used = (0, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.used:
            x = torch.tanh(self.more[layer](x))
        return self.last(x)


@dataclass
class Run:
    """One rank's part of a script: ``net`` is what is called, the model itself or DDP around it."""

    model: nn.Module
    net: nn.Module
    optimizer: torch.optim.Optimizer
    overflow_on: tuple[int, ...] = (COUNT - 1,)
    """On which ranks a scaled gradient overflows once."""
    losses: list[float] = field(default_factory=list)
    kept: dict = field(default_factory=dict)
    """What a script keeps from step to step."""

    @property
    def ours(self):
        return isinstance(self.optimizer, DistributedOptimizer)

    @property
    def sends_gradients(self):
        return self.ours and self.optimizer.algorithm.traits.sends_gradients

    def batch(self, step, part=0):
        random = torch.Generator().manual_seed(1000 * step + 10 * WORLD.rank + part)
        return [torch.randn(4, size, dtype=torch.float64, generator=random) for size in (5, 2)]

    def backward(self, step, part=0, scale=lambda loss: loss, **options):
        x, y = self.batch(step, part)
        loss = mse_loss(self.net(x), y)
        self.losses.append(loss.item())
        scale(loss).backward(**options)

    def synchronize(self):
        if self.ours:
            self.optimizer.synchronize()

    def no_sync(self):
        if self.net is not self.model:
            return self.net.no_sync()
        return self.optimizer.no_sync() if self.ours else nullcontext()


def plain(run, step):
    run.optimizer.zero_grad()
    run.backward(step)
    run.optimizer.step()


def zeros(run, step):
    """`zero_grad` that keeps the gradients' memory."""
    run.optimizer.zero_grad(set_to_none=False)
    run.backward(step)
    run.optimizer.step()


def model_zero_grad(run, step):
    run.model.zero_grad()
    run.backward(step)
    run.optimizer.step()


def thrown_away(run, step):
    """A batch whose gradient is cleared instead of applied, after a `zero_grad` of the model's."""
    run.model.zero_grad()
    run.backward(step)
    run.optimizer.zero_grad()
    run.backward(step, part=1)
    run.optimizer.step()


def pruned(run, step):
    """Now and then all ranks give up another training, as a search does with a trial."""
    if run.ours and step % 3 == 0:
        with torch.random.fork_rng():
            model = Net().double()
        trial = distribute(model, HEAVY(model.parameters()), run.optimizer.algorithm.name, timeout=20)
        with suppress(ValueError):
            x, y = run.batch(step)
            mse_loss(model(x), y).backward()
            trial.step()
            raise ValueError("pruned")
        trial.close()
    plain(run, step)


def closure(run, step):
    def calculate():
        run.optimizer.zero_grad()
        run.backward(step)

    run.optimizer.step(calculate)


def accumulated(run, step):
    run.optimizer.zero_grad()
    with run.no_sync():
        run.backward(step, part=0)
        run.backward(step, part=1)
    run.backward(step, part=2)
    run.optimizer.step()


def clipped(run, step):
    run.optimizer.zero_grad()
    run.backward(step)
    run.synchronize()
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
    run.optimizer.step()


def accumulated_and_clipped(run, step):
    run.optimizer.zero_grad()
    with run.no_sync():
        run.backward(step, part=0)
    run.backward(step, part=1)
    run.synchronize()
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
    run.optimizer.step()


def synchronized_twice(run, step):
    """Another backward pass after the mean is there: DDP reduces again, what it has reduced before with it."""
    run.optimizer.zero_grad()
    run.backward(step, part=0)
    run.synchronize()
    run.backward(step, part=1)
    run.synchronize()
    run.optimizer.step()


def scaled(run, step):
    """Automatic mixed precision; once a gradient overflows, and no rank takes a step."""
    scaler = run.kept.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2))
    overflows = step == 2 and WORLD.rank in run.overflow_on
    run.optimizer.zero_grad()
    run.backward(step, scale=lambda loss: scaler.scale(loss) * (float("inf") if overflows else 1))
    run.synchronize()
    scaler.unscale_(run.optimizer)
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.5)
    scaler.step(run.optimizer)
    scaler.update()
    run.kept.setdefault("scales", []).append(scaler.get_scale())


def scaled_with_zeros(run, step):
    """The model clears its gradients, in place: the mean of a step that was skipped is not taken for the next one's."""
    scaler = run.kept.setdefault("scaler", torch.amp.GradScaler("cpu", init_scale=64.0))
    overflows = step == 2 and WORLD.rank in run.overflow_on
    run.model.zero_grad(set_to_none=False)
    run.backward(step, scale=lambda loss: scaler.scale(loss) * (float("inf") if overflows else 1))
    run.synchronize()
    scaler.step(run.optimizer)
    scaler.update()


def unused_everywhere(run, step):
    run.net.train()
    run.model.used = (0,) if step % 3 else (0, 1)
    plain(run, step)


def never_used(run, step):
    run.model.used = (1,)
    plain(run, step)


def never_used_and_zeros(run, step):
    run.model.used = (1,)
    zeros(run, step)


def unused_and_zeros(run, step):
    run.model.used = (0,) if step % 3 else (0, 1)
    zeros(run, step)


def unused_on_some(run, step):
    run.model.used = (0,) if (step + WORLD.rank) % 2 else (0, 1)
    plain(run, step)


def scheduled(run, step):
    scheduler = run.kept.get("scheduler")
    if scheduler is None:
        scheduler = run.kept["scheduler"] = torch.optim.lr_scheduler.StepLR(run.optimizer, 2, gamma=0.3)
    plain(run, step)
    scheduler.step()


MERGE_AT_ANY_TIME = ("adpsgd", "gossip", "lasgd")
"""Algorithms that change the model in the background, between two steps too."""


def copied(run, step):
    """Copies of the model are plain ones: a moving average, a deep copy that trains on its own, a saved model."""
    average = run.kept.setdefault("average", torch.optim.swa_utils.AveragedModel(run.model))
    plain(run, step)
    average.update_parameters(run.model)
    alone = copy.deepcopy(run.model)
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    for other in (alone, torch.load(file, weights_only=False)):
        before = [p.detach().clone() for p in run.model.parameters()]
        optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
        other(torch.ones(3, 5, dtype=torch.float64)).sum().backward()
        optimizer.step()
        merging = hasattr(run.optimizer, "algorithm") and run.optimizer.algorithm.name in MERGE_AT_ANY_TIME
        assert merging or all(torch.equal(p, old) for p, old in zip(run.model.parameters(), before, strict=True))


def with_graph(run, step):
    """DDP cannot: its part of this is as if there was no graph."""
    run.optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of reference cycles
        run.backward(step, create_graph=run.ours)
    run.optimizer.step()


def compiled(run, call):
    """Compile a call of our scripts, with a backend that takes no seconds to generate code."""
    if not run.ours:
        return call
    if "compiled" not in run.kept:
        torch._dynamo.reset()
        run.kept["compiled"] = torch.compile(call, backend="eager")
    return run.kept["compiled"]


def compiled_step(run, step):
    run.optimizer.zero_grad()
    run.backward(step)
    compiled(run, run.optimizer.step)()


def compiled_synchronize(run, step):
    run.optimizer.zero_grad()
    run.backward(step)
    compiled(run, run.synchronize)()
    nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
    run.optimizer.step()


def compiled_whole(run, step):
    """A train step from `zero_grad` to `step`, with the backward pass."""

    def train(x, y):
        run.optimizer.zero_grad()
        loss = mse_loss(run.net(x), y)
        loss.backward()
        run.optimizer.step()
        return loss.detach()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # torch hides it, else
        run.losses.append(compiled(run, train)(*run.batch(step)).item())


def compiled_closure(run, step):
    def calculate():
        run.optimizer.zero_grad()
        run.backward(step)

    compiled(run, run.optimizer.step)(calculate)


def per_sample(run, step, prepared=lambda run, call: call):
    """The mean of the samples' gradients, each of them clipped, by `torch.func`."""
    parameters = {name: p.detach() for name, p in run.model.named_parameters()}

    def loss(parameters, x, y):
        return mse_loss(functional_call(run.model, parameters, (x[None],)), y[None])

    found = prepared(run, vmap(grad(loss), (None, 0, 0)))(parameters, *run.batch(step))
    run.losses.append(0.0)
    for name, p in run.model.named_parameters():
        p.grad = found[name].clamp(-0.1, 0.1).mean(0)
        if run.net is not run.model:  # DDP reduces the gradients of backward() alone
            p.grad = sum(WORLD.allgather(p.grad)) / COUNT
    run.optimizer.step()


def compiled_per_sample(run, step):
    per_sample(run, step, compiled)


class SharpnessAware:
    """Around an optimizer: the gradient that it applies is that of a step up the first one."""

    def __init__(self, base):
        self.base, self.up = base, []

    @torch.no_grad()
    def first_step(self):
        parameters = [p for p in self.base.param_groups[0]["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        self.up = [(p, 0.05 * p.grad / norm) for p in parameters]
        for p, up in self.up:
            p.add_(up)

    @torch.no_grad()
    def second_step(self):
        for p, up in self.up:
            p.sub_(up)
        self.base.step()


def sharpness_aware(run, step):
    sharp = run.kept.setdefault("sharp", SharpnessAware(run.optimizer))
    run.optimizer.zero_grad()
    run.backward(step)
    run.synchronize()
    sharp.first_step()
    run.optimizer.zero_grad()
    run.backward(step, part=1)
    sharp.second_step()


class Averaging(torch.optim.SGD):
    """Schedule-free, in that a model to be tested is the average of those that are trained."""

    average = trained = None
    evaluations = 0

    @torch.no_grad()
    def eval(self):
        parameters = self.param_groups[0]["params"]
        self.evaluations += 1
        self.trained = [p.clone() for p in parameters]
        self.average = self.average or self.trained
        self.average = [a.lerp(p, 1 / self.evaluations) for a, p in zip(self.average, self.trained, strict=True)]
        torch._foreach_copy_(parameters, self.average)

    @torch.no_grad()
    def train(self):
        if self.trained is not None:
            torch._foreach_copy_(self.param_groups[0]["params"], self.trained)


def averaging(parameters):
    return Averaging(parameters, lr=0.1, momentum=0.9)


def schedule_free(run, step):
    run.optimizer.train()
    plain(run, step)
    run.optimizer.eval()


def frozen_first(net):
    net.first.requires_grad_(False)


def with_views(net):
    """Buffers that see a parameter, another buffer, and a table that is none; statistics of another dtype."""
    net.register_buffer("turned", net.first.weight.data.t())
    net.register_buffer("statistics", torch.zeros(2, 5).double())
    net.register_buffer("mean", net.statistics[0])
    net.table = torch.zeros(2, 5).double()
    net.register_buffer("row", net.table[0])
    net.register_buffer("short", torch.zeros(5))


def views_are_seen(run, step):
    net = run.model
    for tensor in (net.statistics, net.table, net.short):
        tensor += 1
    plain(run, step)
    assert torch.equal(net.turned, net.first.weight.t())
    assert torch.equal(net.mean, net.statistics[0]) and torch.equal(net.row, net.table[0])


def sgd(**options):
    return lambda parameters: torch.optim.SGD(parameters, lr=0.1, **options)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


HEAVY = sgd(momentum=0.9, weight_decay=0.1)

ROWS = {
    "plain": (plain, sgd()),
    "momentum": (plain, sgd(momentum=0.9)),
    "nesterov": (plain, sgd(momentum=0.9, nesterov=True)),
    "weight decay": (plain, HEAVY),
    "adamw": (plain, adamw),
    "zeros": (zeros, HEAVY),
    "model.zero_grad": (model_zero_grad, HEAVY),
    "thrown away": (thrown_away, sgd()),
    "pruned": (pruned, HEAVY),
    "closure": (closure, HEAVY),
    "accumulated": (accumulated, HEAVY),
    "clipped": (clipped, HEAVY),
    "clipped adamw": (clipped, adamw),
    "accumulated and clipped": (accumulated_and_clipped, HEAVY),
    "synchronized twice": (synchronized_twice, HEAVY),
    "scaled": (scaled, HEAVY),
    "scaled adamw": (scaled, adamw),
    "scaled with zeros": (scaled_with_zeros, HEAVY),
    "unused everywhere": (unused_everywhere, HEAVY),
    "unused everywhere adamw": (unused_everywhere, adamw),
    "never used": (never_used, HEAVY),
    "never used and zeros": (never_used_and_zeros, HEAVY),
    "unused and zeros": (unused_and_zeros, HEAVY),
    "unused on some": (unused_on_some, HEAVY),
    "unused on some adamw": (unused_on_some, adamw),
    "scheduled": (scheduled, HEAVY),
    "frozen": (plain, HEAVY, frozen_first),
    "copied": (copied, HEAVY),
    "views": (views_are_seen, HEAVY, with_views),
    "with graph": (with_graph, HEAVY),
    "compiled step": (compiled_step, HEAVY),
    "compiled step adamw": (compiled_step, adamw),
    "compiled synchronize": (compiled_synchronize, HEAVY),
    "compiled whole": (compiled_whole, HEAVY),
    "compiled closure": (compiled_closure, HEAVY),
    "per sample": (per_sample, HEAVY),
    "compiled per sample": (compiled_per_sample, HEAVY),
    "sharpness aware": (sharpness_aware, HEAVY),
    "schedule free": (schedule_free, averaging),
}
"""By name: what a script does in a step, its optimizer, and what it does to the model before `distribute`."""
