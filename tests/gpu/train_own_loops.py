"""On every rank: train in a loop of one's own; ``python train_own_loops.py DEVICE FOLDER``.

Writes the trained parameters of rank 0, as FOLDER/DEVICE-NAME.pt, after a check that the ranks whose algorithm makes
their models equal have the same bits.
"""

import sys
from pathlib import Path

import torch
from torch import nn

import grsgd
from grsgd.job import launch
from grsgd.own_loop.ranks import local_rank
from grsgd.training.device import pick_device, use

STEPS, FEATURES, CLASSES = 12, 20, 5


class Adapted(nn.Module):
    """A linear layer whose weight is frozen, with a trained product of two narrow matrices beside it (LoRA)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(0.1 * torch.randn(rank, inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def whole(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES)).to(dtype)


def adapted(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(Adapted(FEATURES, 32), nn.Tanh(), Adapted(32, CLASSES)).to(dtype)


LOOPS = {
    "mean gradients": (whole, torch.float64, "ring_allreduce", {}),
    "gossip": (whole, torch.float64, "dpsgd", {}),
    "local steps": (whole, torch.float64, "diloco", {"H": 4}),
    "outer state in host memory": (whole, torch.float64, "diloco", {"H": 4, "outer_state": "host"}),
    "adapters": (adapted, torch.float64, "ring_allreduce", {}),
    "adapters with local steps": (adapted, torch.float64, "local_sgd", {"H": 4}),
    "bfloat16": (whole, torch.bfloat16, "ring_allreduce", {}),
    "bfloat16 with gossip": (whole, torch.bfloat16, "dpsgd", {}),
}
"""Model, dtype of its parameters, algorithm and options of each loop."""


def train(mpi, device: torch.device, make, dtype: torch.dtype, algorithm: str, options: dict) -> dict:
    """Return the trained parameters after `finish`, on the CPU."""
    torch.manual_seed(0)
    model = make(dtype).to(device)
    frozen = {name: each.clone() for name, each in model.named_parameters() if not each.requires_grad}
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    optimizer = grsgd.distribute(model, optimizer, algorithm, timeout=60, **options)
    random = torch.Generator().manual_seed(1 + mpi.rank)
    for _ in range(STEPS):
        x = torch.randn(16, FEATURES, generator=random).to(device, dtype)
        y = torch.randint(CLASSES, (16,), generator=random).to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).float() if dtype is torch.bfloat16 else model(x), y).backward()
        optimizer.step()
    optimizer.finish()
    assert all(torch.equal(dict(model.named_parameters())[name], each) for name, each in frozen.items())
    found = {name: each.detach().cpu() for name, each in model.named_parameters() if each.requires_grad}
    sums = mpi.allgather([each.double().sum().item() for each in found.values()])
    assert all(each == sums[0] for each in sums), f"{algorithm}: models differ: {sums}"
    return found


def main():
    kind, folder = sys.argv[1], Path(sys.argv[2])
    mpi = launch.world()
    device = pick_device(kind, local_rank())
    use(device)
    for name, loop in LOOPS.items():
        if mpi.rank == 0:
            print(name, flush=True)  # for a reader who looks for the place of a failure
        found = train(mpi, device, *loop)
        if mpi.rank == 0:
            torch.save(found, folder / f"{kind}-{name}.pt")


if __name__ == "__main__":
    main()
