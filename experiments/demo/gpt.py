"""Training of a small GPT as in nanoGPT, with marked lines (<--) that make it train on all ranks and survive deaths.

    grsgd run -n 6 --spares 2 experiments/demo/gpt.py --algorithm diloco --save gpt.pt
    grsgd run -n 3 experiments/demo/gpt.py --algorithm grsgd --resume gpt.pt

The script has AdamW with parameter groups, a learning rate with warm-up and cosine, clipping, accumulation over
micro-batches, bfloat16, ``torch.compile``, checkpoints, and evaluations. A training can go on from a checkpoint on any
number of ranks, with any algorithm.
"""

import argparse
import json
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
from nanogpt import GPT, draw, loss_of
from torch import nn

import grsgd  # <--


def rate(step, steps, warm_up):
    """Return the factor of the learning rate at ``step``. It rises during ``warm_up`` steps, then falls as a cosine to
    0.1."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1))


def train(o):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = (Path(o.text).read_text() if o.text else "\n".join(topics.values()))[: o.characters]
    letters = {letter: index for index, letter in enumerate(sorted(set(text)))}
    text = torch.tensor([letters[letter] for letter in text])
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]

    model = GPT(len(letters), o.block, o.layers, o.heads, o.width)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, o.steps, o.warm_up))
    begin = 0
    if o.resume:
        kept = torch.load(o.resume, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        schedule.load_state_dict(kept["schedule"])
        begin = kept["step"]
    rank, ranks = grsgd.rank(), grsgd.size()  # <--
    if o.algorithm == "parameter_server":  # all ranks train, and rank 0 has the state of the optimizer
        o.options = {"server": "shared"} | o.options
    optimizer = grsgd.distribute(model, optimizer, o.algorithm, timeout=o.timeout, **o.options)  # <--
    forward = torch.compile(model) if o.compile else model
    precision = torch.autocast("cpu", torch.bfloat16, enabled=o.bfloat16)

    def loss_on_test(model):
        with torch.no_grad(), precision:
            return loss_of(model, draw(test, 100, o.block, torch.Generator().manual_seed(0))).item()

    steps = range(begin, o.steps)
    if o.algorithm != "parameter_server":  # a training with a parameter server ends after a death
        steps = grsgd.surviving(optimizer, steps, schedule=schedule)  # <--
    for step in steps:
        batch = draw(train, o.batch, o.block, torch.Generator().manual_seed(step))[rank::ranks]
        micro_batches = batch.split(math.ceil(len(batch) / o.accumulate))
        optimizer.zero_grad()
        for micro_batch in micro_batches:
            with precision:
                loss = loss_of(forward, micro_batch) * len(micro_batch) / len(batch)
            loss.backward()
        optimizer.synchronize()  # <--
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % o.every == 0 or step + 1 == o.steps:
            average = optimizer.averaged_model()  # <--
            if grsgd.is_main():  # <--
                print(f"step {step + 1}: loss on unseen text {loss_on_test(average):.4f}", flush=True)
                if o.save:
                    kept = {"model": average.state_dict(), "step": step + 1, "schedule": schedule.state_dict()}
                    kept["optimizer"] = optimizer.state_dict(algorithm=False)  # <-- for any number of ranks
                    torch.save(kept, f"{o.save}.new")
                    os.replace(f"{o.save}.new", o.save)
    optimizer.finish()  # <--
    if grsgd.is_main():  # <--
        print(f"end: loss on unseen text {loss_on_test(model):.6f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(",")[0])
    parser.add_argument("--algorithm", default="ring_allreduce")
    sizes = {"steps": 300, "batch": 24, "accumulate": 2, "warm-up": 20, "every": 100, "characters": 400_000}
    for name, default in (sizes | {"block": 64, "layers": 3, "heads": 4, "width": 96}).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--options", type=json.loads, default={}, help="options of the algorithm, as JSON")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a rank waits for other ranks")
    parser.add_argument("--text", help="file with the text; by default Python's language reference")
    parser.add_argument("--bfloat16", action="store_true", help="compute forward passes in bfloat16")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--save", help="file of the checkpoint")
    parser.add_argument("--resume", help="checkpoint to go on from")
    train(parser.parse_args())
