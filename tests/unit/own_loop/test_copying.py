"""Copies of models that copy.deepcopy cannot copy."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from grsgd.own_loop.copying import copy_of
from grsgd.own_loop.distribute import distribute
from tests.support.own_loop import leaves_nothing, loss, network, plain, sgd, vector
from tests.support.threads import on_threads

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.filterwarnings("ignore::FutureWarning")]
__all__ = ["leaves_nothing"]


class Keeps(nn.Sequential):
    """Keeps a loss with its graph, and outputs in a dictionary."""

    auxiliary = None

    def forward(self, x):
        y = super().forward(x)
        self.auxiliary = y.square().mean()
        self.kept = {"y": y, "itself": self}
        return y


def keeping(model):
    return Keeps(*model)


def pruned(model):
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    return model


def hooked(model):
    model.kept = []
    model[0].register_forward_hook(lambda module, given, y: model.kept.append(y))
    return model


def weight_normed(model):
    nn.utils.weight_norm(model[0])
    return model


def spectral_normed(model):
    nn.utils.spectral_norm(model[0])
    return model


@pytest.mark.parametrize("change", [keeping, pruned, hooked, weight_normed, spectral_normed])
def test_averages_of_models_that_keep_graphs(change, monkeypatch):
    def work(mpi):
        model = change(network())
        optimizer = distribute(model, sgd(model), "dpsgd", mpi, timeout=20.0, progress_mode="inline")
        for k in range(2):
            plain(model, optimizer, lambda k: loss(model, mpi.rank, k), k)
        averaged = optimizer.averaged_model()
        expected = sum(mpi.allgather(vector(model))) / 2
        torch.testing.assert_close(vector(averaged), expected, rtol=1e-12, atol=1e-14)
        averaged(torch.ones(1, 4, dtype=torch.float64)).sum().backward()  # a plain model
        optimizer.finish()

    on_threads(monkeypatch, 2, work)


def test_what_cannot_be_copied_is_shared_and_named():
    model = network()
    model[2].lock, model.files = threading.Lock(), {"none": 1, "iterator": (x for x in ())}
    with pytest.warns(RuntimeWarning) as found:
        copied = copy_of(model, "averaged_model()")
    said = [str(warning.message) for warning in found]
    assert len(said) == 2 and said[0].startswith(
        """averaged_model(): the copy shares "files['iterator']" with the model"""
    )
    assert said[1].startswith("averaged_model(): the copy shares '2.lock' with the model: cannot pickle")
    assert copied[2].lock is model[2].lock and copied.files is not model.files
    assert torch.equal(vector(copied), vector(model)) and copied[0].weight is not model[0].weight


@pytest.mark.parametrize(
    "makes, words", [(lambda self, memo: self, "shares parameters with the model"), (None, "fails: ")]
)
def test_models_without_a_copy(makes, words, monkeypatch):
    class Own(nn.Linear):
        __deepcopy__ = makes or (lambda self, memo: 1 / 0)

    with pytest.raises(RuntimeError, match=rf"^averaged_model\(\): copy.deepcopy of Own {words}") as caught:
        copy_of(Own(2, 1), "averaged_model()")
    assert "\n" not in str(caught.value)


def test_a_copy_has_tensors_of_its_own_and_no_graphs():
    model = network()
    model.leaf, model.loss = torch.ones(2, requires_grad=True), next(model.parameters()).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = copy_of(model, "a test")
    assert copied.loss.grad_fn is None and copied.loss == model.loss and copied.loss is not model.loss
    assert copied.leaf.requires_grad and copied.leaf is not model.leaf and model.loss.grad_fn is not None
