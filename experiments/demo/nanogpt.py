"""A character-level GPT in plain PyTorch, as in nanoGPT, with marked lines (<--) that make it train on all ranks.

    grsgd run -n 2 experiments/demo/nanogpt.py
    grsgd run -n 2 experiments/demo/nanogpt.py --algorithm diloco

The training text is the language reference, which is part of every Python installation; ``--text FILE`` names another
text. On two free cores a training takes less than a minute.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional

import grsgd  # <-- marks the 10 lines that are new or changed


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters, block, layers, heads, width):
        super().__init__()
        self.block = block
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(block, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)
        self.apply(self.initialise)
        self.head.weight = self.token.weight

    @staticmethod
    def initialise(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.token(x) + self.place.weight[: x.shape[1]])))

    @torch.no_grad()
    def continue_text(self, x, count):
        for _ in range(count):
            probabilities = self(x[:, -self.block :])[:, -1].softmax(-1)
            x = torch.cat([x, torch.multinomial(probabilities, 1)], 1)
        return x


def loss_of(model, windows):
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def draw(text, count, block, generator=None):
    """Return ``count`` windows of ``block`` + 1 characters at random positions in ``text``."""
    begins = torch.randint(len(text) - block, (count, 1), generator=generator)
    return text[begins + torch.arange(block + 1)]


def main(algorithm, steps, lr, batch, block, layers, heads, width, text, out):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = Path(text).read_text() if text else "\n".join(topics.values())
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    text = torch.tensor([number[letter] for letter in text])
    train, test = text[: -len(text) // 10], text[-len(text) // 10 :]
    generator = torch.Generator().manual_seed(grsgd.rank())  # <-- each rank draws its own windows
    batch = batch // grsgd.size()  # <-- all ranks together take the batch of one process
    model = GPT(len(letters), block, layers, heads, width)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=0.1)
    optimizer = grsgd.distribute(model, optimizer, algorithm)  # <-- makes one training of the ranks' steps
    with grsgd.recording(out, optimizer, lr=lr, dataset="text", metric=grsgd.Metric("nats")) as run:  # <-- a run file
        for step in range(steps):
            loss = loss_of(model, draw(train, batch, block, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.synchronize()  # <-- clipping then uses the ranks' mean gradient
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 50 == 49:
                run.log(loss=loss)  # <-- replaces print()
        optimizer.finish()  # <-- all ranks hold the same model
        with torch.no_grad():
            nats = loss_of(model, draw(test, 200, block, torch.Generator().manual_seed(0)))
        run.log(nats=nats)  # <-- the last value of the run's curve
    if grsgd.is_main():  # <-- one rank prints
        print(f"loss on unseen text: {nats:.3f} nats per character")
        print("".join(letters[i] for i in model.continue_text(draw(test, 1, 8), 200)[0]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(",")[0])
    parser.add_argument("--algorithm", default="ring_allreduce")
    for name, default in {"steps": 300, "batch": 32, "block": 64, "layers": 3, "heads": 4, "width": 96}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--text")
    parser.add_argument("--out", default="nanogpt.h5")
    main(**vars(parser.parse_args()))
