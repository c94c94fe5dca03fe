"""The models: sizes, shapes they take, and that they learn."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from grsgd.data import load
from grsgd.data.shards import index_stream
from grsgd.models.register import MODELS, model
from grsgd.models.zoo import NAMES, build

OF_IMAGES = [name for name in NAMES if not MODELS[name].reads_text]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("dnn", (1, 28, 28), 10, 1_028_518),
        ("mlp", (1, 28, 28), 10, 235_146),
        ("cnn", (1, 28, 28), 10, 421_642),
        ("cnn", (3, 32, 32), 10, 545_098),
        ("resnet20", (3, 32, 32), 10, 269_722),
        ("resnet18", (3, 224, 224), 1000, 11_689_512),
        ("resnet50", (3, 224, 224), 1000, 25_557_032),
    ],
)
def test_parameters(name, shape, classes, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in build(name, shape, classes).parameters()) == count


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), pytest.param((3, 64, 40), marks=pytest.mark.exhaustive)]
)
def test_forward_and_backward(name, shape):
    if name in ("resnet18", "resnet50") and min(shape[1:]) < 32:
        with pytest.raises(ValueError, match=f"model {name}: images of .* expected at least 32x32"):
            build(name, shape, 7)
        return
    net = build(name, shape, 7)
    logits = net(torch.randn(2, *shape))
    assert logits.shape == (2, 7)
    functional.cross_entropy(logits, torch.tensor([0, 6])).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())


def test_resnet_has_torchvision_names():
    with torch.device("meta"):
        names = set(build("resnet50", (3, 224, 224), 1000).state_dict())
        basic = set(build("resnet18", (3, 224, 224), 1000).state_dict())
    assert len(names) == 320 and len(basic) == 122
    assert {"conv1.weight", "bn1.running_var", "layer1.0.downsample.1.bias", "layer4.2.conv3.weight"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.1.bn2.weight", "fc.bias"} <= basic
    assert "layer1.0.downsample.0.weight" not in basic


def test_resnet50_strides_in_its_3x3_convolution():
    block = build("resnet50", (3, 32, 32), 2).layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


def test_resnet20_shortcuts_have_no_parameters():
    assert not any("downsample" in name for name, _ in build("resnet20", (3, 32, 32), 10).named_parameters())


def test_initialisation_comes_from_the_global_seed():
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in build("resnet20", (3, 32, 32), 10).parameters()])

    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("name", "shape", "options", "word"),
    [
        ("vgg", (1, 28, 28), {}, "unknown model vgg; there are dnn, mlp, cnn, resnet20, resnet18, resnet50, gpt"),
        ("mlp", (28, 28), {}, r"image shape \(28, 28\), expected \(channels, height, width\)"),
        ("mlp", (1, 0, 28), {}, "image shape"),
        ("cnn", (1, 3, 28), {}, "images of 3x28, expected at least 4x4"),
        ("resnet20", (3, 7, 8), {}, "expected at least 8x8"),
        ("dnn", (3, 224, 224), {}, "150528 inputs"),
        ("dnn", (1, 28, 28), {"output": "relu"}, "output is relu, expected linear or sigmoid"),
        ("cnn", (1, 28, 28), {"hidden": [3]}, "unknown option hidden; allowed: none"),
    ],
)
def test_refusals(name, shape, options, word):
    with pytest.raises(ValueError, match=word) as caught:
        build(name, shape, 10, **options)
    assert "\n" not in str(caught.value)


def test_options():
    assert len([m for m in build("mlp", (1, 8, 8), 10, hidden=[5]) if isinstance(m, torch.nn.Linear)]) == 2
    assert build("dnn", (1, 8, 8), 10, output="sigmoid")(torch.randn(3, 1, 8, 8)).min() > 0


def test_registering_twice():
    with pytest.raises(ValueError, match="mlp is registered twice"):
        model("mlp")(lambda shape, classes: None)


@pytest.mark.parametrize(("name", "rate"), [("dnn", 0.05), ("mlp", 0.1), ("cnn", 0.05)])
def test_learns_digits(name, rate, tmp_path):
    torch.manual_seed(0)
    data = load("digits", tmp_path)
    net = build(name, data.shape, data.classes)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
    stream = index_stream(np.arange(len(data.train)), 32, seed=0, rank=0)
    for images, labels in itertools.islice(data.train.batches(stream), 250):
        optimizer.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    images, labels = next(data.test.batches([np.arange(len(data.test))]))
    with torch.no_grad():
        assert (net(images).argmax(1) == labels).float().mean() > 0.93


@pytest.mark.parametrize("hidden", [[0], [-3], 5, [2.5], ["a"], [True], "64"])
def test_widths_are_positive_integers(hidden):
    with pytest.raises(ValueError, match="^model mlp: hidden is .*, expected a list of positive integers"):
        build("mlp", (1, 4, 4), 10, hidden=hidden)


def test_the_cnn_pools_before_relu_and_makes_the_same():
    """Values of few digits, among which there are many equal ones, and windows of negative ones."""
    images, labels = torch.randint(0, 4, (64, 1, 8, 8)) / 3, torch.randint(0, 10, (64,))
    torch.manual_seed(0)
    faster = build("cnn", (1, 8, 8), 10)
    usual = type(faster)(*copy.deepcopy(faster))
    usual[1], usual[2], usual[4], usual[5] = usual[2], usual[1], usual[5], usual[4]
    for network in (faster, usual):
        functional.cross_entropy(network(images), labels).backward()
    assert torch.equal(faster(images), usual(images))
    for mine, its in zip(faster.parameters(), usual.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
