"""``[gradient]`` of a configuration: micro-batches, autocast, compilation, and TF32."""

import numpy as np
import pytest
import torch
from torch import nn

from grsgd import tasks
from grsgd.cli import main
from grsgd.config.sections import Gradient, Optimizer
from grsgd.errors import ConfigError
from grsgd.models.replica import Replica
from grsgd.training import device as gpu
from grsgd.training.batch_gradient import BatchGradient, check_compiler
from grsgd.training.gradients import FORWARD_SHARE, begin_of_last_backward
from grsgd.training.optimizer import build_optimizer
from tests.support.training import config, simulation


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def gradient_of(flat=True, dtype=torch.float64, **wanted):
    """Return the loss, and the gradient of each parameter, of a batch of 7 samples."""
    replica = Replica(network(dtype), flat_gradients=flat)
    of_batch = BatchGradient(Gradient(**wanted), replica, tasks.build("classification", {}))
    drawn = torch.Generator().manual_seed(1)
    x = torch.randn(7, 6, dtype=dtype, generator=drawn)
    y = torch.randint(0, 3, (7,), generator=drawn)
    of_batch.compute(x, y, 7)  # the gradient of a batch begins at zero
    return of_batch.compute(x, y, 7), torch.cat([p.grad.flatten() for p in replica.trained])


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_micro_batches_give_the_gradient_of_the_whole_batch(flat, size):
    (loss, whole), (same, parts) = gradient_of(flat), gradient_of(flat, micro_batch=size)
    assert same == pytest.approx(loss, rel=1e-12)
    assert torch.allclose(parts, whole, rtol=1e-12, atol=1e-15)
    if size >= 7:
        assert torch.equal(parts, whole) and same == loss


def test_gradients_are_complete_in_the_last_micro_batch():
    replica, complete = Replica(network()), []
    of_batch = BatchGradient(Gradient(micro_batch=3), replica, tasks.build("classification", {}))
    replica.on_gradient(lambda _: complete.append(of_batch.is_last))
    of_batch.compute(torch.ones(7, 6, dtype=torch.float64), torch.zeros(7, dtype=torch.int64), 7)
    assert complete == [False] * 8 + [True] * 4


def test_autocast_rounds_to_16_bits_and_leaves_float32_gradients():
    (loss, plain), (rounded_loss, rounded) = (
        gradient_of(dtype=torch.float32, autocast=how) for how in ("off", "bfloat16")
    )
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - plain).norm() < 0.02 * plain.norm()
    assert rounded_loss == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("buckets", [None, 2])
def test_training_in_micro_batches_is_the_same_training(buckets):
    """Training with buckets sends gradients in the backward pass of the last micro-batch, not before."""
    algorithm = {"name": "ring_allreduce"} | ({"buckets": buckets} if buckets else {})
    models = []
    for gradient in ({}, {"micro_batch": 3}):
        job = simulation(algorithm, 3, gradient=gradient, dtype="float64", steps=4)
        job.train()
        arrays = [trainer.replica.params.array for trainer in job.trainers]
        assert all((array == arrays[0]).all() for array in arrays)
        models.append(arrays[0])
    np.testing.assert_allclose(models[1], models[0], rtol=1e-12)


def test_simulated_moments_of_complete_gradients():
    assert begin_of_last_backward(Gradient(), 16) == FORWARD_SHARE
    assert begin_of_last_backward(Gradient(micro_batch=16), 16) == FORWARD_SHARE
    assert begin_of_last_backward(Gradient(micro_batch=5), 16) == pytest.approx(1 - (1 - FORWARD_SHARE) / 4)
    assert begin_of_last_backward(Gradient(compile=True), 16) == 1


def test_defaults_leave_the_text_of_a_configuration_as_it_was():
    assert "[gradient]" not in config("dpsgd").toml() and "clip_value" not in config("dpsgd").toml()
    chosen = config("dpsgd", gradient={"micro_batch": 2, "autocast": "bfloat16"})
    assert '[gradient]\nautocast = "bfloat16"\ntf32 = false\ncompile = false\nmicro_batch = 2' in chosen.toml()


@pytest.mark.parametrize("key, value", [("autocast", "bfloat16"), ("tf32", True)])
def test_nothing_is_rounded_in_float64(key, value):
    with pytest.raises(ConfigError, match=rf"gradient\.{key} = .*rounds float32 only, but dtype = 'float64'"):
        config("dpsgd", gradient={key: value}, dtype="float64")


def test_other_dtypes_are_refused():
    with pytest.raises(ConfigError, match="gradient.autocast = 'float16': input should be 'off' or 'bfloat16'"):
        config("dpsgd", gradient={"autocast": "float16"})


def test_the_simulator_compiles_nothing():
    with pytest.raises(ConfigError, match="gradient.compile = true: .*--timing-only"):
        simulation("dpsgd", 2, gradient={"compile": True})
    assert simulation("dpsgd", 2, gradient={"compile": True}, timing_only=True).train() == "steps"


def test_no_compiler_is_one_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="no C.. compiler 'no-such-compiler': install g"):
        check_compiler(Gradient(compile=True), torch.device("cpu"))
    check_compiler(Gradient(), torch.device("cpu"))


def test_a_compiler_that_fails_is_one_line(monkeypatch):
    def compiled(function):
        def fail(x):
            raise RuntimeError("Python.h: No such file\n\ncompilation terminated")

        return fail

    monkeypatch.setattr(torch, "compile", compiled)
    with pytest.raises(ConfigError, match="cannot compile on this machine: Python.h: No such file compilation") as got:
        check_compiler(Gradient(compile=True), torch.device("cpu"))
    assert "\n" not in str(got.value)


def test_tf32_is_for_gpus_only():
    was = torch.backends.cuda.matmul.allow_tf32
    try:
        gpu.allow_tf32(torch.device("cpu"), True)
        gpu.allow_tf32(torch.device("cuda"), False)
        assert torch.backends.cuda.matmul.allow_tf32 == was
        gpu.allow_tf32(torch.device("cuda"), True)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was


def test_check_shows_them(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text(config("dpsgd", gradient={"micro_batch": 2, "autocast": "bfloat16"}).toml())
    assert main(["train", str(path), "--check", "--ranks", "2"]) == 0
    assert "gradient   autocast = bfloat16, micro_batch = 2" in capsys.readouterr().out


def test_elements_of_a_gradient_are_clipped():
    p = nn.Parameter(torch.zeros(3))
    optimizer = build_optimizer(Optimizer(lr=0.05, clip_value=0.5), [p])
    p.grad = torch.tensor([0.1, -2.0, 3.0])
    optimizer.step()
    assert torch.allclose(p, torch.tensor([-0.005, 0.025, -0.025]))


def test_one_kind_of_clipping():
    with pytest.raises(ConfigError, match="optimizer: clip_value = 1.0 with clip = 1.0: give only one of them"):
        config("dpsgd", optimizer={"clip": 1.0, "clip_value": 1.0})
