"""A standard PyTorch script for MNIST, with numbered lines that make it train on all ranks of an MPI job, as a run.

mpiexec -n 4 python experiments/demo/own_loop.py
grsgd report results/*.h5
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grsgd
import grsgd.data


def tensors(split):
    return TensorDataset(*(torch.cat(parts) for parts in zip(*split.batches([np.arange(len(split))]), strict=True)))


def accuracy(model, data):
    x, y = data.tensors
    with torch.no_grad():
        return (model.eval()(x).argmax(1) == y).double().mean().item()


def main(epochs=10, lr=0.1, out="results/own-loop.h5"):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mnist = grsgd.data.load("mnist-5k", "data")
    train, test = tensors(mnist.train), tensors(mnist.test)
    mine = grsgd.shard(train)  # <-- 1: this rank's part of the data
    loader = DataLoader(mine, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = grsgd.distribute(model, optimizer, "grsgd")  # <-- 2: mixes the ranks' models in every step

    Path(out).parent.mkdir(exist_ok=True)
    kept = {"lr": lr, "epochs": epochs, "dataset": "mnist-5k", "train_samples": len(train), "target_accuracy": 0.93}
    with grsgd.recording(out, optimizer, **kept) as run:  # <-- 3: writes the run file
        for _ in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            run.log(loss=loss, accuracy=accuracy(optimizer.averaged_model(), test))
        optimizer.finish()  # <-- 4: all ranks now hold the same model
        run.log(accuracy=accuracy(model, test))

    if grsgd.is_main():
        print(f"test accuracy {accuracy(model, test):.3f}, {out}")


if __name__ == "__main__":
    main()
