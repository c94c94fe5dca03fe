"""Train a LightningModule on MNIST-5k with any algorithm: ``grsgd run -n 2 lightning_mnist.py --algorithm dpsgd``.

Install Lightning with ``pip install grsgd[lightning]``.
"""

import argparse

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import grsgd.data
from grsgd.integrations.lightning import GrsgdStrategy


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.accuracy(self.layers(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def tensors(split) -> TensorDataset:
    return TensorDataset(*(torch.cat(parts) for parts in zip(*split.batches([np.arange(len(split))]), strict=True)))


def main(algorithm: str, epochs: int):
    torch.set_num_threads(1)
    mnist = grsgd.data.load("mnist-5k", "data")
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, strategy=GrsgdStrategy(algorithm), logger=False
    )
    trainer.fit(
        Digits(), DataLoader(tensors(mnist.train), 16, shuffle=True), DataLoader(tensors(mnist.test), batch_size=500)
    )
    if trainer.is_global_zero:
        print(f"{algorithm}: accuracy {trainer.callback_metrics['accuracy']:.3f} on {trainer.world_size} ranks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithm", default="dpsgd")
    parser.add_argument("--epochs", type=int, default=2)
    main(**vars(parser.parse_args()))
