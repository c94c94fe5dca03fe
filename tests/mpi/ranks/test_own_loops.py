"""Training scripts with `distribute`, held against the same scripts with DDP, or with blocking calls, in float64."""

import io
import itertools
import os
import tempfile
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as gloo
from torch.nn.parallel import DistributedDataParallel

import grsgd
from grsgd.comm.allreduce import shared
from grsgd.comm.topologies import topology
from tests.mpi.ranks.conftest import COUNT, WORLD
from tests.mpi.ranks.scripts import HEAVY, ROWS, Net, Run, plain

STEPS, TIMEOUT = 6, 20
EXACT = 1e-12

LOCAL = ["local_sgd", "lasgd"]
GOSSIP = ["dpsgd", "sgp", "grsgd", "gosgd", "adpsgd", "gossip", "easgd"]
FURTHER = ["diloco", "noloco", "choco_sgd", "exact_diffusion", "gradient_tracking", "relaysgd"]


@pytest.fixture(scope="module", autouse=True)
def process_group():
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        store = WORLD.bcast(folder)
        gloo.init_process_group("gloo", init_method=f"file://{store}/store", rank=WORLD.rank, world_size=WORLD.size)
        yield
        WORLD.Barrier()
        gloo.destroy_process_group()


def script(row, distribute=None, ddp=False, mix=None):
    """One rank's run of a row: with ``distribute(model, optimizer)``, with DDP, or plain torch, in which ``mix(model,
    optimizer)`` has hooks around the optimizer's steps mix the ranks' models by blocking calls."""
    step, optimizer, *prepare = ROWS[row]
    torch.manual_seed(WORLD.rank if distribute else 0)  # all start from rank 0's model
    model = Net().double()
    for change in prepare:
        change(model)
    optimizer = optimizer(model.parameters())
    net = model
    if distribute is not None:
        optimizer = distribute(model, optimizer)
    elif ddp:
        net = DistributedDataParallel(model, find_unused_parameters=True)
    elif mix is not None:
        mix(model, optimizer)
    run = Run(model, net, optimizer)
    if not (ddp or run.sends_gradients):
        run.overflow_on = range(COUNT)
    for k in range(STEPS):
        step(run, k)
    if distribute is not None:
        optimizer.finish()
    elif mix is not None:
        take_mean(model)
    return run


def take_mean(model):
    for p in model.parameters():
        p.data.copy_(sum(WORLD.allgather(p.data)) / WORLD.size)


def average_after(model, optimizer):
    """Local SGD with H = 1."""
    optimizer.register_step_post_hook(lambda *_: take_mean(model))


def mix_with_neighbours(model, optimizer):
    """D-PSGD on a ring, from models before the step: x = sum_j W[i, j] x_j + what the optimizer has changed."""
    W, changes = topology.build("ring", WORLD.size).matrix(0)[WORLD.rank], []

    def before(*_):
        everybody = [WORLD.allgather(p.data) for p in model.parameters()]
        changes[:] = [sum(w * x for w, x in zip(W, xs, strict=True)) - xs[WORLD.rank] for xs in everybody]

    def after(*_):
        for p, change in zip(model.parameters(), changes, strict=True):
            p.data.add_(change)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def halve_with_one(model, optimizer):
    """SGP: in step k the mean with rank i - 2^(k mod log2 n); all weights are 1 where all send as often as they get."""
    steps = itertools.count()

    def after(*_):
        source = (WORLD.rank - 2 ** (next(steps) % (WORLD.size - 1).bit_length())) % WORLD.size
        for p in model.parameters():
            p.data.copy_((p.data + WORLD.allgather(p.data)[source]) / 2)

    optimizer.register_step_post_hook(after)


REFERENCES = {
    "local_sgd": ({"H": 1}, average_after),
    "dpsgd": ({}, mix_with_neighbours),
    "sgp": ({}, halve_with_one),
}
"""Of the algorithms that send models, those whose every step is determined: options, and the same by blocking calls."""


def difference(run, other):
    pairs = zip(run.model.parameters(), other.model.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


def distributed(algorithm, **options):
    return lambda *pair: grsgd.distribute(*pair, algorithm, timeout=TIMEOUT, **options)


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "top-k", "ratio": 1.0}, {"variant": "shared"}, {"variant": "auto"}, {"buckets": 3}],
    ids=str,
)
@pytest.mark.parametrize("row", ROWS)
def test_as_with_ddp(row, options, monkeypatch):
    """Also through payloads that lose nothing, with gradients that lie in shared memory, and in buckets."""
    monkeypatch.setattr(shared, "SHORT_BYTES", 4)  # the model is small
    theirs = script(row, ddp=True)
    with no_warning():
        ours = script(row, distributed("ring_allreduce", **options))
    assert difference(ours, theirs) <= EXACT
    assert max(abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True)) <= EXACT
    assert ours.kept.get("scales") == theirs.kept.get("scales")
    if "average" in ours.kept:
        assert difference(Run(ours.kept["average"], None, None), Run(theirs.kept["average"], None, None)) <= EXACT


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("algorithm", REFERENCES)
@pytest.mark.parametrize("row", ROWS)
def test_as_plain_scripts_that_mix_their_models(row, algorithm):
    options, mix = REFERENCES[algorithm]
    with no_warning():
        ours = script(row, distributed(algorithm, **options))
    theirs = script(row, mix=mix)
    assert difference(ours, theirs) <= EXACT
    assert ours.kept.get("scales") == theirs.kept.get("scales")


@pytest.mark.ranks(1)
@pytest.mark.parametrize("algorithm", ["ring_allreduce", *LOCAL, *GOSSIP])
@pytest.mark.parametrize("row", ROWS if COUNT == 1 else ["plain"])  # spares hundreds of skipped tests
def test_one_rank_is_the_plain_script(row, algorithm):
    with no_warning():
        ours = script(row, distributed(algorithm))
    assert difference(ours, script(row)) <= EXACT


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("algorithm", [*LOCAL, *GOSSIP, *FURTHER])
@pytest.mark.parametrize("row", ["accumulated and clipped", "scaled", "unused on some adamw", "copied"])
def test_ranks_end_with_one_model(row, algorithm):
    with no_warning():
        run = script(row, distributed(algorithm))
    for p in run.model.parameters():
        assert p.isfinite().all()
        assert all(torch.equal(p, other) for other in WORLD.allgather(p.data))


@pytest.mark.ranks(2)
def test_compiled():
    torch.manual_seed(0)
    model = Net().double()
    optimizer = distributed("ring_allreduce")(model, HEAVY(model.parameters()))
    run = Run(model, torch.compile(model, backend="eager"), optimizer)
    with no_warning():
        for step in range(STEPS):
            plain(run, step)
    optimizer.finish()
    assert difference(run, script("weight decay", ddp=True)) <= EXACT


@pytest.mark.ranks(2)
def test_a_compiled_step():
    """Of an algorithm that sends models: `torch.compile` once applied the others' models of its first steps alone."""
    with no_warning():
        ours = script("compiled step", distributed("dpsgd"))
    assert difference(ours, script("compiled step", mix=mix_with_neighbours)) <= EXACT


@pytest.mark.ranks(3)
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "grsgd", "local_sgd"])
def test_a_part_of_the_ranks(algorithm):
    """Two jobs side by side, one of a single rank, which trains as if it was alone."""
    part = WORLD.Split(WORLD.rank == 2)
    run = script("weight decay", lambda *pair: grsgd.distribute(*pair, algorithm, part, timeout=TIMEOUT))
    found = part.allgather([p.data for p in run.model.parameters()])
    assert all(torch.equal(p, q) for other in found for p, q in zip(found[0], other, strict=True))
    part.Free()


def kept_of(run) -> dict:
    """What a script saves, as it comes back from a file."""
    file = io.BytesIO()
    torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def trained(algorithm, options, steps, kept=None) -> Run:
    """Train for these steps; from what was ``kept``, or from the beginning."""
    torch.manual_seed(WORLD.rank)
    model = Net().double()
    optimizer = distributed(algorithm, **options)(model, HEAVY(model.parameters()))
    if kept is not None:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    run = Run(model, model, optimizer)
    for step in steps:
        plain(run, step)
    optimizer.rest()
    return run


SYNCHRONOUS = [
    ("ring_allreduce", {}),
    ("local_sgd", {"H": 4, "beta": 0.5}),
    ("dpsgd", {}),
    ("sgp", {}),
    ("ring_allreduce", {"buckets": 3}),
    ("ring_allreduce", {"compression": "int8"}),
    ("ring_allreduce", {"compression": "power-sgd", "matrix_rank": 1}),
    ("choco_sgd", {"compression": "sign"}),
    ("noloco", {"H": 4}),
    ("easgd", {"centre": "allreduce", "period": 3}),
]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(("algorithm", "options"), SYNCHRONOUS, ids=str)
def test_a_script_that_goes_on_is_the_undisturbed_one_bit_for_bit(algorithm, options):
    whole, begun = trained(algorithm, options, range(11)), trained(algorithm, options, range(5))
    later = trained(algorithm, options, range(5, 11), kept_of(begun))
    for run in (whole, begun, later):
        run.optimizer.finish()
    assert all(torch.equal(p, q) for p, q in zip(whole.model.parameters(), later.model.parameters(), strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(whole.model.parameters(), begun.model.parameters(), strict=True))


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("algorithm", [*LOCAL, *GOSSIP, *FURTHER])
def test_all_ranks_go_on_with_what_they_had_together(algorithm):
    begun = trained(algorithm, {}, range(5))
    average = begun.optimizer.averaged_model()
    later = trained(algorithm, {}, [], kept_of(begun))
    pairs = zip(average.parameters(), later.optimizer.averaged_model().parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)
    for step in range(5, 9):
        plain(later, step)
    for run in (begun, later):
        run.optimizer.finish()  # raises where weights were lost
    for p in later.model.parameters():
        assert p.isfinite().all() and all(torch.equal(p, other) for other in WORLD.allgather(p.data))


@pytest.mark.ranks(2)
def test_without_rest_the_algorithm_is_not_kept():
    run = trained("grsgd", {}, range(3))
    assert "state" in run.optimizer.state_dict()["grsgd"]
    plain(run, 3)
    with pytest.warns(RuntimeWarning, match="call optimizer.rest"):
        assert "state" not in run.optimizer.state_dict()["grsgd"]
    run.optimizer.finish()
