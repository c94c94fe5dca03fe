"""DiLoCo held against torchft's, where that is installed (``pip install torchft``)."""

import threading

import numpy as np
import pytest
import torch

from grsgd.testing.quadratic import MOMENTUM, RATE, STEPS, WEIGHT_DECAY, Job, Quadratic

local_sgd = pytest.importorskip("torchft.local_sgd")


class Together:
    """Stands for the managers of n replicas, each in a thread: all commit, and all-reduces are means."""

    _use_async_quorum = False

    def __init__(self, n):
        self.barrier, self.parts, self.thread, self.steps = threading.Barrier(n, timeout=20), {}, {}, {}

    def allreduce(self, tensor, should_quantize=False):
        self.parts[threading.get_ident()] = tensor
        self.barrier.wait()
        mean = torch.stack([self.parts[thread] for thread in sorted(self.parts)]).mean(0)
        self.barrier.wait()
        tensor.copy_(mean)
        self.barrier.wait()
        return Done()

    def should_commit(self):
        self.steps[threading.get_ident()] = self.current_step() + 1
        return True

    def current_step(self):
        return self.steps.get(threading.get_ident(), 0)

    def __getattr__(self, name):  # start_quorum, register_state_dict_fn, ...: nothing to do here
        return lambda *arguments, **named: None


class Done:
    def wait(self):
        return True


def histories(n, H, outer_lr, outer_momentum):
    """The models of each replica after each of its steps, trained by torchft."""
    manager, found = Together(n), [[] for _ in range(n)]

    def train(rank):
        model = Quadratic(rank)
        inner = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        outer = torch.optim.SGD(model.parameters(), outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)
        with local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=H):
            for step in range(STEPS):
                model.set_gradients(step)
                inner.step()
                found[rank].append(model.x.detach().numpy().copy())

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(found)


@pytest.mark.parametrize("outer_lr, outer_momentum", [(0.7, 0.9), (1.0, 0.0), (0.4, 0.5)])
@pytest.mark.parametrize("n, H", [(1, 4), (2, 5), (3, 8)])
def test_the_same_history_of_all_parameters(n, H, outer_lr, outer_momentum):
    job = Job("diloco", n, H=H, outer_lr=outer_lr, outer_momentum=outer_momentum).train()
    theirs = histories(n, H, outer_lr, outer_momentum)
    assert theirs.shape == np.array(job.trajectories).shape
    assert np.abs(theirs - np.array(job.trajectories)).max() < 1e-12
