"""A standard PyTorch MNIST script, and the three lines (marked) that make it train on all ranks of an MPI job.

    mpiexec -n 4 python experiments/demo/own_loop.py
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grsgd
import grsgd.data


def tensors(split):
    return TensorDataset(*(torch.cat(parts) for parts in zip(*split.batches([np.arange(len(split))]), strict=True)))


def main(epochs=10):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mnist = grsgd.data.load("mnist-5k", "data")
    train, test = tensors(mnist.train), tensors(mnist.test)
    train = grsgd.shard(train)  # <-- 1: this rank's part of the data
    loader = DataLoader(train, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = grsgd.distribute(model, optimizer, "grsgd")  # <-- 2: mixes the ranks' models in every step

    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    optimizer.finish()  # <-- 3: all ranks now hold the same model
    model.eval()
    with torch.no_grad():
        x, y = test.tensors
        print(f"test accuracy {(model(x).argmax(1) == y).float().mean():.3f}")


if __name__ == "__main__":
    main()
