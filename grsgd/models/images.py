"""Models for images of any shape (channels, height, width) that is not too small for the model.

resnet18 and resnet50 have torchvision's parameter names, so they can load torchvision's weights.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from grsgd.models.register import MAX_LAYERS, model

IMAGENET = (3, 224, 224), 1000


def _dense(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    """Return linear layers for flattened images. ``widths`` has the number of inputs of the first layer, and the number
    of outputs of each layer. An activation of the class ``activation`` is between two linear layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


@model("dnn", source="CSSGD's public code, Parallel-SGD")
def dnn(shape, classes, output: str = "linear"):
    """Linear layers d-d-396-192-128-classes with tanh, where d is the number of values of an image. The public code of
    CSSGD has a sigmoid after the last layer (``output`` "sigmoid"); the default of this package is "linear".

    The outputs of a sigmoid are between 0 and 1. With sigmoid outputs, the cross-entropy of ten classes cannot fall
    below 1.46, and training is slow. In one run each on mnist-5k (20 epochs, batch size 64, learning rate 0.05), the
    test accuracy was 0.73 with sigmoid output, and 0.92 with linear output. With momentum 0.9, the test accuracy on
    mnist-5k was 0.94 with either output.
    """
    d = math.prod(shape)
    if d > 12_288:
        raise ValueError(f"model dnn: {d} inputs make a first layer of {d}x{d}, expected at most 12288 (3x64x64)")
    if output not in ("linear", "sigmoid"):
        raise ValueError(f"model dnn: output is {output}, expected linear or sigmoid")
    layers = _dense((d, d, 396, 192, 128, classes), nn.Tanh)
    return layers if output == "linear" else layers.append(nn.Sigmoid())


@model("mlp", source="the usual small baseline")
def mlp(shape, classes, hidden: Sequence[int] = (256, 128)):
    """Linear layers with ReLU between them. ``hidden`` has the widths of the hidden layers; an empty list makes a
    linear classifier."""
    if not (isinstance(hidden, list | tuple) and all(type(width) is int and width > 0 for width in hidden)):
        raise ValueError(f"model mlp: hidden is {hidden!r}, expected a list of positive integers, such as [256, 128]")
    if len(hidden) > MAX_LAYERS:
        raise ValueError(f"model mlp: hidden has {len(hidden)} widths, expected at most {MAX_LAYERS}")
    return _dense((math.prod(shape), *hidden, classes), nn.ReLU)


class ChannelsLast(nn.Sequential):
    """Sequence of layers whose input images are converted to torch's memory format channels_last. With channels_last,
    the two convolutions of `cnn` on a CPU are 2.4 times as fast in testing, and 1.2 times as fast in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous(memory_format=torch.channels_last))


@model("cnn", smallest=4, source="after LeNet-5 (1998)")
def cnn(shape, classes):
    """Two convolutions and two linear layers with ReLU.

    ReLU comes after the max pooling, when only a quarter of the values is left. The result is the same as with ReLU
    before the max pooling.
    """
    channels, height, width = shape
    return ChannelsLast(
        *(nn.Conv2d(channels, 32, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 128), nn.ReLU()),
        nn.Linear(128, classes),
    )


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class PadShortcut(nn.Module):
    """Shortcut of a residual block, option A of He et al., 2016. The shortcut takes every ``stride``-th pixel, and adds
    channels of zeros before and after the input's channels."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride, self.margin = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.margin, self.margin))


def conv_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the shortcut of a residual block, option B of He et al., 2016: a 1x1 convolution with batch
    normalisation."""
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Residual block: convolutions, each with batch normalisation, and ReLU between them. The block adds the shortcut
    to the output of the last convolution, and applies ReLU to the sum."""

    def __init__(self, convolutions: Sequence[nn.Conv2d], shortcut: nn.Module):
        super().__init__()
        self.depth = len(convolutions)
        for k, convolution in enumerate(convolutions, 1):
            self.add_module(f"conv{k}", convolution)
            self.add_module(f"bn{k}", nn.BatchNorm2d(convolution.out_channels))
        self.downsample = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k in range(1, self.depth + 1):
            y = getattr(self, f"bn{k}")(getattr(self, f"conv{k}")(y))
            if k < self.depth:
                y = functional.relu(y, inplace=True)
        return functional.relu(y + self.downsample(x), inplace=True)


def basic(inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
    """Return the convolutions of a basic residual block: two 3x3 convolutions of ``width`` channels."""
    return [_conv(inputs, width, 3, stride), _conv(width, width, 3)]


def bottleneck(inputs: int, width: int, stride: int) -> list[nn.Conv2d]:
    """Return the three convolutions of a bottleneck block: 1x1 and 3x3 with ``width`` channels, and 1x1 with four times
    ``width`` channels."""
    return [_conv(inputs, width, 1), _conv(width, width, 3, stride), _conv(width, 4 * width, 1)]


class ResNet(nn.Module):
    """Residual network: a first convolution (the stem), stages of residual blocks called layer1, layer2, ..., and a
    linear layer. Each stage except the first halves the height and width of the images."""

    def __init__(self, stem: nn.Conv2d, pool: nn.Module, block, blocks, widths, shortcut, classes: int):
        super().__init__()
        self.conv1, self.bn1, self.maxpool = stem, nn.BatchNorm2d(stem.out_channels), pool
        self.stages = [f"layer{k}" for k in range(1, len(blocks) + 1)]
        inputs = stem.out_channels
        for name, count, width in zip(self.stages, blocks, widths, strict=True):
            stage = nn.Sequential()
            for first in [True] + [False] * (count - 1):
                stride = 2 if first and name != "layer1" else 1
                convolutions = block(inputs, width, stride)
                outputs = convolutions[-1].out_channels
                changes = stride > 1 or inputs != outputs
                stage.append(Residual(convolutions, shortcut(inputs, outputs, stride) if changes else nn.Identity()))
                inputs = outputs
            self.add_module(name, stage)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        for name in self.stages:
            x = getattr(self, name)(x)
        return self.fc(torch.mean(x, (2, 3)))


@model("resnet20", smallest=8, source="He et al. 2016, 4.2", usual=((3, 32, 32), 10))
def resnet20(shape, classes):
    """Residual network of three stages with three basic blocks each. Channels that a shortcut adds are zeros (option A
    of He et al., 2016)."""
    return ResNet(_conv(shape[0], 16, 3), nn.Identity(), basic, (3, 3, 3), (16, 32, 64), PadShortcut, classes)


def _imagenet(shape, classes, block, blocks):
    stem, pool = _conv(shape[0], 64, 7, 2), nn.MaxPool2d(3, 2, 1)
    return ResNet(stem, pool, block, blocks, (64, 128, 256, 512), conv_shortcut, classes)


@model("resnet18", smallest=32, source="He et al. 2016, table 1", usual=IMAGENET)
def resnet18(shape, classes):
    """Residual network of four stages with two basic blocks each. Shortcuts are 1x1 convolutions (option B of He et
    al., 2016)."""
    return _imagenet(shape, classes, basic, (2, 2, 2, 2))


@model("resnet50", smallest=32, source="He et al. 2016, table 1", usual=IMAGENET)
def resnet50(shape, classes):
    """Residual network of four stages with 3, 4, 6 and 3 bottleneck blocks. In a bottleneck block with a stride, the
    3x3 convolution has the stride. Shortcuts are 1x1 convolutions (option B of He et al., 2016), as in resnet18."""
    return _imagenet(shape, classes, bottleneck, (3, 4, 6, 3))
