"""A loop that trains a small GPT on Moby-Dick, like nanoGPT's, and the numbered lines that make it train on all ranks.

It needs an MPI job, and writes a run file. Get the text with `grsgd data fetch moby-dick`.

    mpiexec -n 4 python experiments/demo/own_loop_gpt.py
    grsgd report results/own-loop-gpt.h5 results/gpt.h5
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import grsgd
from grsgd.models.zoo import build

BLOCK, BATCH, WARMUP = 128, 32, 40


def draw(text, generator, batch):
    """Return windows at random places, and the byte that follows each byte of them."""
    begins = torch.randint(len(text) - BLOCK - 1, (batch,), generator=generator)
    windows = text[begins[:, None] + torch.arange(BLOCK + 1)]
    return windows[:, :-1], windows[:, 1:]


def bits_per_byte(model, text):
    """Return the bits per byte of a whole text, in windows that do not overlap."""
    count = (len(text) - 1) // BLOCK
    x, y = (text[begin : begin + count * BLOCK].view(count, BLOCK) for begin in (0, 1))
    with torch.no_grad():
        parts = zip(x.split(64), y.split(64), strict=True)
        nats = sum(functional.cross_entropy(model(a).flatten(0, 1), b.flatten(), reduction="sum") for a, b in parts)
    return nats.item() / (count * BLOCK) / math.log(2)


def rate(step, steps):
    """Return the factor of the learning rate: warm-up, then a cosine to 0."""
    return min((step + 1) / WARMUP, (1 + math.cos(math.pi * step / steps)) / 2)


def main(algorithm, steps, lr, out, text):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = torch.from_numpy(np.fromfile(text, np.uint8).astype(np.int64))
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    generator = torch.Generator().manual_seed(grsgd.rank())  # <-- 1: each rank draws different windows
    model = build("gpt", (BLOCK,), 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    optimizer = grsgd.distribute(model, optimizer, algorithm)  # <-- 2: joins the ranks' steps to one training

    Path(out).parent.mkdir(exist_ok=True)
    kept = {"lr": lr, "dataset": "moby-dick", "model": "gpt", "train_samples": len(train) // BLOCK}
    metric = grsgd.Metric("bits_per_byte")
    with grsgd.recording(out, optimizer, metric=metric, **kept) as run:  # <-- 3: writes the run file
        for step in range(steps):
            x, y = draw(train, generator, BATCH // grsgd.size())
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.synchronize()  # <-- 4: so that the mean gradient is clipped, if ranks average gradients
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 49:
                run.log(loss=loss)
        optimizer.finish()
        run.log(bits_per_byte=bits_per_byte(model.eval(), test) if grsgd.is_main() else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(",")[0])
    parser.add_argument("--algorithm", default="ring_allreduce")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--out", default="results/own-loop-gpt.h5")
    parser.add_argument("--text", default="data/moby-dick/moby-dick.txt")
    main(**vars(parser.parse_args()))
