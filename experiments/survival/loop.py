"""Script with its own training loop, which goes on after processes have died.

Processes that are to die end themselves by SIGKILL at given moments of the loop.

    python -m experiments.survival.loop --algorithm grsgd --die 0:0.31,4:0.62

The script's model is small, and its loss ends at the noise of the data. The final loss therefore does not depend on
the number of ranks that are left.
"""

import argparse
import os
import signal
import threading
import time
from contextlib import nullcontext

import torch
from torch import nn

import grsgd
from grsgd.mpi_environment import rank as process

WIDTH, NOISE = 10, 1.0
"""Number of inputs of the model, and standard deviation of the noise of its targets."""


def batch(size: int, *key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch with the random key ``key``.

    Returns inputs of shape [size, WIDTH] and noisy targets of shape [size, 1], both float32.
    """
    random = torch.Generator().manual_seed(hash(key))
    x = torch.randn(size, WIDTH, generator=random)
    return x, x.mean(1, keepdim=True).sin() + NOISE * torch.randn(size, 1, generator=random)


def die_after(seconds: float):
    """Sleep for ``seconds``, and kill this process.

    The function die_after() runs in a thread, so that the training loop cannot delay the death.
    """
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def deaths(text: str) -> dict[str, float]:
    """Parse ``text``; return the moment of death of each process that dies, as a fraction of the loop (0 to 1)."""
    return dict((each.split(":")[0], float(each.split(":")[1])) for each in text.split(",") if each)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="ring_allreduce")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", help="run file of the loop; by default none")
    parser.add_argument("--checkpoints", help="folder for checkpoints; by default none are taken")
    parser.add_argument("--every", default="600s", help="iterations (100) or seconds (60s) between two checkpoints")
    parser.add_argument("--die", type=deaths, default="", help="PROCESS:SHARE,...: deaths, as shares of the loop")
    options = parser.parse_args()
    rank, steps = grsgd.rank(), options.steps
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    optimizer = grsgd.distribute(model, optimizer, options.algorithm, timeout=120.0)
    end = options.die.get(process())
    with grsgd.recording(options.out, optimizer, batch_size=32) if options.out else nullcontext() as run:
        kept = {"checkpoints": options.checkpoints, "every": options.every}
        for step in grsgd.surviving(optimizer, range(steps), scheduler=scheduler, **kept):
            if end is not None and step >= end * steps:
                threading.Thread(target=die_after, args=(end * steps % 1 * 0.02,), daemon=True).start()
                end = None
            x, y = batch(32, 1, rank, step)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            time.sleep(0.005)
        optimizer.finish()
        x, y = batch(20_000, 2)
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x), y).item()
        if run:
            run.log(loss=loss)
    print(f"rank {rank}: {optimizer.steps} steps, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
