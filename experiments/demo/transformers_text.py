"""Train a small GPT-2 on this file's text by any algorithm: ``grsgd run -n 2 transformers_text.py --algorithm dpsgd``.

Install Transformers with ``pip install grsgd[transformers]``. The model has random weights, so nothing is downloaded.
"""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from grsgd.integrations.transformers import GrsgdTrainer

LETTERS = 32
"""Number of letters in a sample of the text."""


def samples(text: bytes) -> list[dict[str, torch.Tensor]]:
    """Return the samples of ``text``, which is cut into pieces of `LETTERS` letters. One token is one byte."""
    parts = torch.tensor(list(text[: len(text) // LETTERS * LETTERS])).view(-1, LETTERS)
    return [{"input_ids": part, "labels": part} for part in parts]


def main(algorithm: str, epochs: int):
    torch.set_num_threads(1)
    set_seed(0)
    text = samples(Path(__file__).read_bytes())
    sizes = {"vocab_size": 128, "n_positions": LETTERS, "n_embd": 48, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    arguments = TrainingArguments(
        "results/transformers-text",
        use_cpu=True,
        per_device_train_batch_size=4,
        num_train_epochs=epochs,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = GrsgdTrainer(model, arguments, train_dataset=text, eval_dataset=text, algorithm=algorithm)
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"{algorithm}: loss {loss:.3f} on {trainer.args.world_size} ranks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithm", default="dpsgd")
    parser.add_argument("--epochs", type=int, default=5)
    main(**vars(parser.parse_args()))
