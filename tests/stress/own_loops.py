"""A random training loop with ``grsgd.distribute``, on all ranks of a job."""

import time
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss, softmax

import grsgd
from tests.stress.draw import WAIT_SECONDS, Learner, OwnLoop
from tests.stress.messages import Recorded, check_messages, check_traffic

INPUTS, OUTPUTS, SAMPLES = 5, 2, 4


class Net(nn.Module):
    """A small model with what models have besides plain layers."""

    def __init__(self, drawn: Learner):
        super().__init__()
        width = drawn.width
        self.first = nn.Linear(INPUTS, width)
        self.norm = nn.BatchNorm1d(width) if drawn.batch_norm else nn.Identity()
        self.middle = nn.Linear(width, width).requires_grad_(not drawn.frozen)
        self.rare = nn.Linear(width, width)
        self.again = nn.Linear(width, width)
        self.last = nn.Linear(width, OUTPUTS)
        if drawn.tied:
            self.again.weight = self.middle.weight
        mask = torch.zeros(width)
        if drawn.mask:
            mask[::2] = -torch.inf
        self.register_buffer("mask", mask)
        self.uses_rare = True

    def forward(self, x):
        x = torch.tanh(self.middle(self.norm(torch.tanh(self.first(x)))))
        if self.uses_rare:
            x = x + torch.tanh(self.rare(x))
        x = x + torch.tanh(self.again(x))
        x = x + softmax(x + self.mask, 1)
        return self.last(x) / x.shape[1] ** 0.5  # or a wide one would diverge


class Script:
    """One learner's part of the loop on one rank, or, for comparison, on all ranks in one process."""

    def __init__(self, drawn: Learner, key: tuple[int, ...], ranks: list[int]):
        """``key``: of what is random in it; ``ranks``: those whose data this process computes with."""
        torch.manual_seed(ranks[0])
        self.drawn, self.key, self.ranks = drawn, key, ranks
        self.model = Net(drawn).to(getattr(torch, drawn.dtype))
        make = getattr(torch.optim, drawn.optimizer)
        self.optimizer = make(self.model.parameters(), **drawn.optimizer_options)
        self.steps = 0

    def distribute(self, world):
        """Train together with the other ranks from now on."""
        drawn = self.drawn
        self.optimizer = grsgd.distribute(
            self.model,
            self.optimizer,
            drawn.algorithm,
            world,
            seed=self.key[0],
            timeout=WAIT_SECONDS,
            progress_mode=drawn.progress_mode,
            **drawn.options,
        )

    def step(self, between=lambda: None):
        """``between``: called before each backward pass."""
        drawn, together = self.drawn, len(self.ranks) > 1
        self.optimizer.zero_grad(set_to_none=not drawn.zeros)
        for rank in self.ranks:
            self.model.uses_rare = self.uses_rare(rank)
            for part in range(drawn.parts):
                loss = self.loss(rank, part)
                between()
                (loss / len(self.ranks)).backward()
        if drawn.clip is not None:
            if not together:
                self.optimizer.synchronize()
            nn.utils.clip_grad_norm_(self.model.parameters(), drawn.clip)
        self.optimizer.step()
        self.steps += 1
        return loss.item()

    def uses_rare(self, rank: int) -> bool:
        when = {
            "always": True,
            "some steps": self.steps % 3 != 1,
            "some ranks": (self.steps + rank) % 2 == 0,
            "never": False,
        }
        return when[self.drawn.rare]

    def loss(self, rank: int, part: int) -> torch.Tensor:
        random = np.random.default_rng((*self.key, self.steps, rank, part))
        x, y = (torch.tensor(random.normal(size=(SAMPLES, n))).to(self.model.last.weight) for n in (INPUTS, OUTPUTS))
        return mse_loss(self.model(x), y)


def run(world, drawn: OwnLoop):
    """Run the loop on all ranks, with all checks; raise what is wrong."""
    communicators = []

    def communicator(*arguments):
        communicators.append(Recorded(*arguments))
        return communicators[-1]

    with mock.patch("grsgd.own_loop.distribute.Communicator", communicator):
        scripts = []
        for number, learner in enumerate(drawn.learners):
            scripts.append(Script(learner, (drawn.seed, number), [world.rank]))
            scripts[-1].distribute(world)
        loop(world, drawn, scripts)
        for script in scripts:
            script.optimizer.finish()
    for script in scripts:
        check(world, script)
        check_traffic(world, script.optimizer.algorithm.comm, script.optimizer.algorithm)
    for comm in communicators:
        check_messages(world, comm, "own loop")
        assert comm.freed, "a communicator was not freed"
    world.Barrier()
    for comm in communicators:
        comm.close()


def loop(world, drawn: OwnLoop, scripts: list[Script]):
    from mpi4py import MPI

    random = np.random.default_rng((drawn.seed, world.rank))
    probability, seconds = drawn.sleeps.get(world.rank, (0.0, 0.0))

    def sleep():
        if random.random() < probability:
            time.sleep(random.exponential(seconds))

    for _ in range(drawn.epochs):
        for _ in range(drawn.steps[world.rank]):
            swapped = drawn.taking_turns and world.rank % 2
            losses = [script.step(sleep) for script in (reversed(scripts) if swapped else scripts)]
            sleep()
        for what in drawn.between:
            if what == "barrier":
                world.Barrier()
            elif what == "metrics":
                total = np.array([sum(losses)])
                world.Allreduce(MPI.IN_PLACE, total)  # the lower-case one stops all threads of a rank that waits
                assert np.isfinite(total[0])
            elif world.rank == 0:
                evaluate(scripts)


def evaluate(scripts: list[Script]):
    """Something that takes longer than a step and neither trains nor communicates."""
    for script in scripts:
        script.model.eval()
        with torch.no_grad():
            time.sleep(0.03)
            assert script.loss(0, 0).isfinite()
        script.model.train()


def check(world, script: Script):
    """After the end: one finite model on all ranks, with the mask as it was; nothing under way."""
    drawn, model = script.drawn, script.model
    background = [str(handle) for handle in script.optimizer.driver.background]
    assert not background, f"left in the background: {background}"
    for name, tensor in model.state_dict().items():
        if name == "norm.num_batches_tracked":
            continue  # a rank's own steps
        assert name == "mask" or tensor.isfinite().all(), f"{drawn.algorithm}: {name} is not finite"
        assert len(set(world.allgather(tensor.numpy().tobytes()))) == 1, f"{drawn.algorithm}: {name} differs"
    assert torch.equal(model.mask, Net(drawn).mask.to(model.mask)), "the mask has changed"
    is_exact = drawn.options.get("compression") is None
    if drawn.algorithm == "ring_allreduce" and drawn.dtype == "float64" and is_exact:
        check_against_one_process(world, script)


def check_against_one_process(world, script: Script):
    """The same as a plain torch script that computes the mean gradient of all ranks by itself."""
    plain = Script(script.drawn, script.key, list(range(world.size)))
    for _ in range(script.steps):
        plain.step()
    for (name, ours), theirs in zip(script.model.named_parameters(), plain.model.parameters(), strict=True):
        difference = float((ours - theirs).abs().max())
        assert difference <= 1e-10, f"{name} differs by {difference:.2g} from that of one process"
