"""LoRA adapters for a GPT with 113 million frozen parameters: ranks send only the adapters, and save only the adapters.

    pip install peft
    grsgd run -n 2 experiments/demo/adapters.py
    grsgd run -n 2 experiments/demo/adapters.py --algorithm diloco

The library peft (Hu et al. 2021, LoRA: Low-rank adaptation of large language models) makes the adapters. This script
makes the GPT with random weights, so nothing is downloaded. For useful adapters, load a pretrained GPT with
``from_pretrained(folder)``. The training text is the language reference, which is part of every Python installation.
"""

import argparse
from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import grsgd


def windows(text, count, block, generator):
    """Return ``count`` windows of ``block`` bytes at random positions in ``text``, int64 of shape [count, block]."""
    begins = torch.randint(len(text) - block, (count, 1), generator=generator)
    return text[begins + torch.arange(block)].long()


def loss_of(model, tokens):
    logits = model(input_ids=tokens).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def main(algorithm, steps, batch, block, layers, width, lr, out):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=block, n_embd=width, n_layer=layers, n_head=width // 64, bos_token_id=None,
        eos_token_id=None,
    )
    base = GPT2LMHeadModel(config)
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(base, lora)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = grsgd.distribute(model, torch.optim.AdamW(trained, lr=lr), algorithm)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(grsgd.rank())  # so that each rank draws different windows of the text
    with grsgd.recording(out, optimizer, lr=lr, dataset="text", metric=grsgd.Metric("nats")) as run:
        for _ in range(steps):
            loss = loss_of(model, windows(text, batch, block, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
        adapters = optimizer.averaged_state_dict()  # neither copies nor sends the frozen parameters
        optimizer.finish()
    if grsgd.is_main():
        torch.save(adapters, f"{out}.pt")  # model.load_state_dict(torch.load(...), strict=False) loads this file
        size, whole = sum(p.nbytes for p in trained), sum(p.nbytes for p in model.parameters())
        sent = run.result.traffic["sent"].sum(1).mean() / steps
        print(f"{whole / 1e6:.1f} MB of parameters, of which {size / 1e6:.2f} MB are adapters")
        print(f"sent per rank and step: {sent / 1e6:.2f} MB; loss {loss.item():.3f} nats per byte")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--algorithm", default="ring_allreduce")
    for name, default in {"steps": 10, "batch": 2, "block": 64, "layers": 16, "width": 768}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", default="adapters.h5")
    main(**vars(parser.parse_args()))
