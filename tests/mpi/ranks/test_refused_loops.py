"""What `distribute` refuses, in one line that names the cause, and what ends a job that would else wait or go wrong."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

import grsgd
from tests.mpi.ranks.conftest import COUNT, WORLD

pytestmark = pytest.mark.ranks(1, 2)
TIMEOUT = 20
EVERY = ["ring_allreduce", "dpsgd", "sgp", "grsgd", "gosgd", "adpsgd", "gossip", "easgd", "local_sgd", "lasgd"]
SOME = ["ring_allreduce", "grsgd", "local_sgd"]

kept = []
"""Of steps that were broken off: MPI may still write into their arrays."""


def network():
    torch.manual_seed(WORLD.rank)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.BatchNorm1d(2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def distribute(model, algorithm="ring_allreduce", optimizer=None, **options):
    return grsgd.distribute(model, optimizer or sgd(model), algorithm, timeout=TIMEOUT, **options)


def take_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 4, dtype=next(model.parameters()).dtype)).square().sum().backward()
    optimizer.step()


def one_line(caught):
    kept.append(caught)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("algorithm", SOME)
def test_parameters_that_are_not_the_models(algorithm):
    model, loss = network(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    with pytest.raises(ValueError, match=r"2 of the parameters of SGD are not the model's .*shape \(1, 2\)") as caught:
        distribute(model, algorithm, optimizer)
    one_line(caught)


def freeze(model):
    model[0].requires_grad_(False)


def unfreeze(model):
    model[2].requires_grad_(True)


def no_frozen_bias(model):
    model[2].bias = None


@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize(
    "change, words",
    [
        (freeze, "'0.weight' was frozen: the trained parameters must stay the same after distribute()"),
        (unfreeze, "'2.weight' was unfrozen: the trained parameters must stay the same after distribute()"),
    ],
)
def test_other_parameters_are_trained_than_before(algorithm, change, words):
    model = network()
    model[2].requires_grad_(False)
    optimizer = distribute(model, algorithm)
    take_step(model, optimizer)
    change(model)
    with pytest.raises(RuntimeError) as caught:
        take_step(model, optimizer)
    assert words in one_line(caught)
    with pytest.raises(RuntimeError) as caught:
        optimizer.finish()
    assert words in one_line(caught)
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    take_step(model, optimizer)
    optimizer.finish()


def double(model):
    model.double()


def from_vector(model):
    vector_to_parameters(parameters_to_vector(model.parameters()) * 2, model.parameters())


def from_data(model):
    model[2].weight.data = model[2].weight.data.clamp(-1, 1)


def assigned(model):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def taken_away(model):
    nn.utils.parametrizations.weight_norm(model[0])


@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize(
    "change, words",
    [
        (double, "'0.weight' was given new memory after distribute()"),
        (from_vector, "'0.weight' was given new memory after distribute()"),
        (from_data, "'2.weight' was given new memory after distribute()"),
        (assigned, "'0.weight' was given new memory after distribute()"),
        (taken_away, "'0.weight' was taken from the model after distribute()"),
    ],
)
def test_parameters_with_new_memory(algorithm, change, words):
    model = network()
    optimizer = distribute(model, algorithm)
    take_step(model, optimizer)
    places = {name: p.data for name, p in model.named_parameters()}
    change(model)
    with pytest.raises(RuntimeError) as caught:
        optimizer.step()
    assert words in one_line(caught)
    with pytest.raises(RuntimeError, match="after distribute"):
        optimizer.finish()
    give_back(model, places, optimizer)


def give_back(model, places, optimizer):
    """Let the optimizer come to its end, with the memory that it knows."""
    parameters = iter(group for group in optimizer.param_groups[0]["params"])
    if hasattr(model[0], "parametrizations"):
        del model[0].parametrizations
        model[0].__class__ = nn.Linear
    for (name, place), p in zip(places.items(), parameters, strict=True):
        p.data = place
        module, _, last = name.rpartition(".")
        model.get_submodule(module)._parameters[last] = p
    optimizer.finish()


def test_a_gradient_with_new_memory():
    model = network()
    optimizer = distribute(model)
    take_step(model, optimizer)
    if COUNT > 1:
        model[0].weight.grad.data = model[0].weight.grad.data.clone()
        with pytest.raises(RuntimeError, match="the gradient of '0.weight' was given new memory") as caught:
            optimizer.step()
        one_line(caught)
    optimizer.finish()


def test_buffers_that_are_replaced_are_averaged():
    """Some modules assign their statistics anew instead of writing into them."""
    model = network()
    optimizer = distribute(model, "local_sgd", H=2)
    for _ in range(3):
        take_step(model, optimizer)
        model[3].running_mean = model[3].running_mean + WORLD.rank
    expected = sum(WORLD.allgather(model[3].running_mean)) / WORLD.size
    optimizer.finish()
    torch.testing.assert_close(model[3].running_mean, expected)


@pytest.mark.parametrize("part", [slice(None), slice(2, 3)])
def test_two_parameters_in_one_memory(part):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight.data = model[0].weight.data[part]
    with pytest.raises(ValueError, match=r"parameters '0.weight' and '1.weight' lie in one memory") as caught:
        distribute(model)
    one_line(caught)
    model[1].weight = model[0].weight
    distribute(model).finish()


def test_parameters_in_memory_that_processes_share():
    model = network().share_memory()
    with pytest.raises(ValueError, match="'0.weight' lies in memory that processes share .*: share a copy") as caught:
        distribute(model)
    one_line(caught)


def test_a_model_that_is_distributed_already():
    model = network()
    optimizer = distribute(model, "grsgd")
    for again in (model, nn.Sequential(model[0], nn.Linear(3, 1))):
        with pytest.raises(ValueError, match="distributed already: call finish") as caught:
            distribute(again, "grsgd")
        one_line(caught)
    other = network()
    beside = distribute(other, "ring_allreduce")
    take_step(other, beside)
    beside.finish()
    take_step(model, optimizer)
    optimizer.finish()
    optimizer = distribute(model, "ring_allreduce")
    take_step(model, optimizer)
    optimizer.finish()


@pytest.mark.parametrize("algorithm", EVERY)
def test_step_after_finish(algorithm):
    model = network()
    optimizer = distribute(model, algorithm)
    for _ in range(3):
        take_step(model, optimizer)
    optimizer.finish()
    optimizer.finish()
    with pytest.raises(RuntimeError, match=r"step\(\) after finish\(\)") as caught:
        take_step(model, optimizer)
    one_line(caught)
    vector = parameters_to_vector(model.parameters())
    assert all(torch.equal(vector, other) for other in WORLD.allgather(vector.detach()))


def test_optimizers_that_cannot_be_distributed():
    model = network()
    with pytest.raises(ValueError, match="LBFGS calls its closure several times per step") as caught:
        distribute(model, "grsgd", torch.optim.LBFGS(model.parameters()))
    one_line(caught)
    with pytest.raises(ValueError, match="SparseAdam needs sparse gradients") as caught:
        distribute(model, "ring_allreduce", torch.optim.SparseAdam(model.parameters()))
    one_line(caught)


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "grsgd"])
def test_dtypes_that_numpy_lacks(algorithm):
    with pytest.raises(ValueError, match="torch.float8_e5m2, which NumPy does not have; allowed: torch.bf") as caught:
        distribute(network().to(torch.float8_e5m2), algorithm)
    one_line(caught)


def test_options_that_train_no_model_of_bfloat16():
    with pytest.raises(ValueError, match="bfloat16 with the option compression = 'int8'; allowed with bf") as caught:
        distribute(network().bfloat16(), "parameter_server", server="shared", compression="int8")
    one_line(caught)


def test_sparse_gradients():
    model = nn.Embedding(5, 3, sparse=True)
    for algorithm in ("grsgd", "ring_allreduce"):
        optimizer = distribute(
            model, algorithm, torch.optim.SparseAdam(model.parameters()) if algorithm == "grsgd" else None
        )
        model(torch.tensor([1, 2])).sum().backward()
        if algorithm == "ring_allreduce" and COUNT > 1:
            with pytest.raises(RuntimeError, match="the gradient of 'weight' is sparse; only dense") as caught:
                optimizer.step()
            one_line(caught)
        else:
            optimizer.step()
        optimizer.finish()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "algorithm, options, words",
    [
        ("grsgd", {"rho": 2}, "grsgd: rho: is called data.replication now"),
        ("local_sgd", {"H": 0}, "local_sgd: H = 0: input should be greater than or equal to 1"),
        ("local_sgd", {"h": 2}, "local_sgd: h: unknown key"),
    ],
)
def test_options(algorithm, options, words):
    with pytest.raises(ValueError) as caught:
        distribute(network(), algorithm, **options)
    assert words in one_line(caught)


def test_a_distributed_optimizer_is_not_copied():
    model = network()
    optimizer = distribute(model, "grsgd")
    for how in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save its state_dict"):
            how(optimizer)
    take_step(model, optimizer)
    optimizer.finish()


def clip(model, optimizer):
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def clamp(model, optimizer):
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.1, 0.1)
    optimizer.step()


def scaled(optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    scaler.step(optimizer)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("algorithm", SOME)
def test_a_scaler_without_synchronize(algorithm):
    """A rank whose gradients overflow would skip a step that the others wait for."""
    model = network()
    optimizer = distribute(model, algorithm)
    model(torch.randn(5, 4)).sum().backward()
    if algorithm == "ring_allreduce":
        with pytest.raises(RuntimeError, match=r"call optimizer.synchronize\(\) after backward\(\)") as caught:
            scaled(optimizer)
        one_line(caught)
        optimizer.synchronize()
    scaled(optimizer)
    optimizer.finish()


@pytest.mark.ranks(2)
def test_synchronize_again_after_another_backward():
    """Whether or not the model is called as a module in training, as one that is fine-tuned in evaluation mode."""
    model = network().eval()
    optimizer = distribute(model, "ring_allreduce")
    for backward in range(2):
        model(torch.full((5, 4), 1.0 + WORLD.rank + backward)).sum().backward()
        optimizer.synchronize()
        gradients = WORLD.allgather([p.grad.tolist() for p in model.parameters()])
        assert gradients[0] == gradients[1]
    model.zero_grad(set_to_none=False)  # all skip this step
    model(torch.full((5, 4), 1.0 + WORLD.rank)).sum().backward()
    optimizer.synchronize()
    gradients = WORLD.allgather([p.grad.tolist() for p in model.parameters()])
    assert gradients[0] == gradients[1]
    optimizer.step()
    optimizer.finish()


@pytest.mark.ranks(2)
def test_a_forward_pass_on_one_rank_between_synchronize_and_step():
    """Such as one for a metric: it neither sends the gradients again nor counts as a change of them."""
    model = network().train()
    optimizer = distribute(model, "ring_allreduce")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).sum().backward()
            optimizer.synchronize()
            if WORLD.rank == 0:
                model(torch.randn(5, 4))
            clip(model, optimizer)
    optimizer.finish()


@pytest.mark.parametrize("algorithm", SOME)
def test_modules_that_are_replaced_or_get_more_parameters(algorithm):
    model = network()
    optimizer = distribute(model, algorithm)
    take_step(model, optimizer)
    layer = model[0]
    model[0] = nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match="module 'Sequential' has got other modules or parameters") as caught:
        optimizer.step()
    one_line(caught)
    model[0] = layer
    layer.scale = nn.Parameter(torch.ones(3))
    with pytest.raises(RuntimeError, match="module '0' has got other modules or parameters") as caught:
        optimizer.step()
    one_line(caught)
    del layer.scale
    optimizer.finish()


def test_buffers_that_keep_a_graph_or_change_their_shape():
    model = network()
    model.register_buffer("total", torch.zeros(()))
    model.register_buffer("cache", torch.zeros(3))
    optimizer = distribute(model, "local_sgd")
    model.total = model.total + model[0].bias.sum()
    take_step(model, optimizer)
    assert model.total.grad_fn is None and not model.total.requires_grad
    model.cache = torch.zeros(4)
    with pytest.warns(UserWarning, match="buffer 'cache' has another shape than at distribute"):
        take_step(model, optimizer)
    optimizer.finish()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("change", [clip, clamp])
@pytest.mark.parametrize("algorithm", SOME)
def test_gradients_that_are_changed_before_they_are_sent(algorithm, change):
    """There is one warning, and none with `synchronize` or for an algorithm that sends models."""
    for synchronizes in (False, True):
        model = network()
        optimizer = distribute(model, algorithm)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(5, 4)).sum().backward()
                if synchronizes:
                    optimizer.synchronize()
                change(model, optimizer)
        optimizer.finish()
        expected = algorithm == "ring_allreduce" and not synchronizes
        messages = [str(warning.message) for warning in found if "optimizer.synchronize()" in str(warning.message)]
        assert len(messages) == expected, messages
        assert all("\n" not in message for message in messages)
