"""Loops of users that are recorded, against `grsgd train` and against what was logged."""

import csv
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import grsgd
from grsgd.config import parse
from grsgd.job.run import run as train
from grsgd.training.inputs import build_model, load_data
from tests.mpi.ranks.conftest import COUNT, WORLD

STEPS, BATCH, TIMEOUT = 12, 4, 30
CONFIG = {
    "model": {"name": "mlp", "hidden": [5]},
    "data": {"name": "digits", "batch_size": BATCH},
    "train": {"steps": STEPS, "snapshots": 2},
    "comm": {"timeout": float(TIMEOUT)},
}


@pytest.fixture
def folder(tmp_path):
    """One folder for all ranks."""
    return Path(WORLD.bcast(str(tmp_path)))


def loaded(path):
    WORLD.Barrier()
    return grsgd.load_run(path)


def network():
    torch.manual_seed(WORLD.rank)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def distributed(model, algorithm="dpsgd", **options):
    return grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm, timeout=TIMEOUT, **options)


def take_step(model, optimizer, batch=BATCH):
    optimizer.zero_grad()
    loss = model(torch.randn(batch, 4)).square().sum()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    "algorithm, options",
    [
        ("dpsgd", {}),
        ("ring_allreduce", {}),
        ("local_sgd", {"H": 5}),
        ("sgp", {"tau": 1}),
    ],
)
def test_a_recorded_loop_and_grsgd_train_count_the_same(folder, algorithm, options):
    """Steps, samples, staleness where it is determined, and every byte from each rank to each other."""
    config = parse(CONFIG | {"algorithm": {"name": algorithm, **options}})
    train(WORLD, config, folder / "train.h5")
    data = load_data(config)
    model = build_model(config, data, torch.device("cpu"))
    optimizer = distributed(model, algorithm, **options)
    with grsgd.recording(folder / "mine.h5", optimizer):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(BATCH, *data.shape)).square().sum().backward()
            optimizer.step()
        optimizer.finish()
    theirs, mine = loaded(folder / "train.h5"), loaded(folder / "mine.h5")
    for name in ("steps", "samples"):
        assert (mine.ranks[name] == theirs.ranks[name]).all(), name
    for name in ("sent", "messages", "headers", "sent_once"):
        expected = theirs.traffic[name]
        if algorithm == "ring_allreduce" and name != "messages" and name != "headers":
            flags = len(list(model.parameters())) * 4  # with the gradient a number a parameter: whether there is one
            size = sum(p.numel() for p in model.parameters()) * 4
            assert mine.traffic[name].sum() * size == expected.sum() * (size + flags)
        else:
            assert (mine.traffic[name] == expected).all(), name
    for name in ("algorithm", "ranks", "parameters", "model_bytes", "synchronous", "exact_gradient", "comparison"):
        assert mine.attributes[name] == theirs.attributes[name], name
    if algorithm != "sgp":
        assert all((mine.staleness[name] == theirs.staleness[name]).all() for name in ("value", "count"))


@pytest.mark.ranks(3)
def test_where_no_rank_waits_each_counts_its_own(folder):
    model = network()
    optimizer = distributed(model, "grsgd")
    with grsgd.recording(folder / "mine.h5", optimizer) as run:
        for _ in range(STEPS + WORLD.rank):
            take_step(model, optimizer)
            if WORLD.rank == 1:
                run.log(loss=1)
        optimizer.finish()
    found = loaded(folder / "mine.h5")
    steps = np.arange(STEPS, STEPS + COUNT)
    assert (found.ranks["steps"] == steps).all() and (found.ranks["samples"] == BATCH * steps).all()
    message = found.attributes["model_bytes"] + 8  # and a weight
    assert found.traffic["sent"].sum() == found.traffic["messages"].sum() * message > 0
    assert 0 < found.staleness["count"].sum() <= found.traffic["messages"].sum()  # an inbox that is full merges two
    assert found.curve["step"].tolist() == [*range(1, STEPS + 2)]
    assert (np.diff(found.curve["samples"]) >= 0).all() and found.curve["samples"][-1] <= BATCH * steps.sum()


@pytest.mark.ranks(1, 3)
def test_what_ranks_log_is_combined(folder):
    model = network()
    optimizer = distributed(model)
    logger = grsgd.CsvLogger(folder / f"{WORLD.rank}.csv")
    given = {"lr": 0.1, "seed": 7, "train_samples": 100, "label": "mine", "folder": folder, "nothing": None}
    given |= {"path": "data", "optimizer": "sgd"}  # as in **vars(arguments) of a script
    with grsgd.recording(folder / "mine.h5", optimizer, loggers=[logger], **given) as run:
        for step in range(1, 5):
            loss = take_step(model, optimizer, batch=2 if step == 4 else BATCH)
            run.log(loss=WORLD.rank + step, perplexity=loss if WORLD.rank == COUNT - 1 else None)
            assert run.step == step
            if step == 2 and grsgd.is_main():
                run.log(other=5)
        with pytest.raises(ValueError, match="accuracy = 93: must be a fraction from 0 to 1"):
            run.log(accuracy=93)
        with pytest.raises(TypeError, match="loss must be one number, not Tensor"):
            run.log(loss=torch.zeros(2))
        with pytest.raises(ValueError, match="'time' cannot be a column"):
            run.log(time=1)
        optimizer.finish()
        if grsgd.is_main():
            run.log(accuracy=torch.tensor(0.75))
    found = loaded(folder / "mine.h5")
    attributes, curve = found.attributes, found.curve
    assert curve["step"].tolist() == [1, 2, 3, 4]
    assert curve["samples"].tolist() == [COUNT * samples for samples in (4, 8, 12, 14)]
    assert curve["train_loss"].tolist() == [(COUNT - 1) / 2 + step for step in (1, 2, 3, 4)]
    assert np.isnan(curve["test_accuracy"][:3]).all() and curve["test_accuracy"][3] == 0.75
    assert np.isnan(curve["other"][[0, 2, 3]]).all() and curve["other"][1] == 5
    assert np.isfinite(curve["perplexity"]).all()
    assert (np.diff(curve["time"]) >= 0).all() and curve["time"][-1] <= attributes["wall_seconds"]
    assert (attributes["ended"], attributes["reason"]) == ("completed", "end of the loop")
    assert (attributes["seed"], attributes["label"], attributes["train_samples"]) == (7, "mine", 100)
    assert (attributes["model"], attributes["final_test_accuracy"]) == ("Sequential", 0.75)
    assert 'name = "dpsgd"' in attributes["config"] and "lr = 0.1" in attributes["config"]
    times = sum(found.ranks[f"{name}_seconds"] for name in ("compute", "communicate", "wait", "other"))
    assert (times <= attributes["wall_seconds"] + 1e-6).all() and (found.ranks["compute_seconds"] > 0).all()
    assert found.units["ranks/other_seconds"][0] == "s" and "warnings" not in attributes
    with open(folder / f"{WORLD.rank}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows if row["loss"]] == [WORLD.rank + step for step in (1, 2, 3, 4)]


@pytest.mark.ranks(1, 2)
def test_only_what_happens_in_the_block_counts(folder):
    model = network()
    optimizer = distributed(model, "ring_allreduce")
    take_step(model, optimizer)
    sent = optimizer.algorithm.comm.traffic.sent.sum()
    with grsgd.recording(folder / "mine.h5", optimizer, batch_size=10):
        for _ in range(2):
            take_step(model.eval(), optimizer)
    optimizer.finish()
    found = loaded(folder / "mine.h5")
    assert found.ranks["steps"].tolist() == [2] * COUNT and found.ranks["samples"].tolist() == [20] * COUNT
    assert found.traffic["sent"][WORLD.rank].sum() == 2 * sent
    assert found.curve["step"].tolist() == [2] and found.curve["samples"].tolist() == [20 * COUNT]
    assert found.attributes["warnings"][0].startswith(
        "rank 0: 2 of 2 steps had no forward pass of the model in training"
    )


@pytest.mark.ranks(1, 2)
def test_a_loss_that_is_not_finite_is_a_divergence(folder):
    model = network()
    optimizer = distributed(model)
    with grsgd.recording(folder / "mine.h5", optimizer) as run:
        take_step(model, optimizer)
        run.log(loss=float("nan") if WORLD.rank == COUNT - 1 else 1.0)
        optimizer.finish()
    found = loaded(folder / "mine.h5").attributes
    assert found["ended"] == "diverged" and found["reason"] == f"non-finite loss (nan) on rank {COUNT - 1} at step 1"


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("trial", range(4))
def test_an_error_on_all_ranks_goes_on_after_the_file_is_written(folder, trial):
    """Also where a rank is told of another's error in a step."""
    model = network()
    optimizer = distributed(model)
    with pytest.raises(KeyError, match="mine"), grsgd.recording(folder / f"mine-{trial}.h5", optimizer) as run:
        for step in range(3):
            if WORLD.rank == 1 and step == 2:
                time.sleep(0.05 * trial)
            take_step(model, optimizer)
        run.log(loss=1)
        raise KeyError("mine")
    (optimizer.close if trial % 2 else optimizer.finish)()
    WORLD.barrier()
    found = loaded(folder / f"mine-{trial}.h5")
    assert found.attributes["ended"] == "failed" and found.attributes["reason"].startswith("KeyError: 'mine' on rank")
    assert found.ranks["steps"].tolist() == [3] * COUNT and found.curve["train_loss"].tolist() == [1]


@pytest.mark.ranks(2)
def test_an_error_breaks_off_a_call_that_other_ranks_are_in(folder):
    """Calls and steps of later trainings are counted alike again."""
    model = network()
    optimizer = distributed(model)
    with pytest.raises(KeyError, match="mine"), grsgd.recording(folder / "mine.h5", optimizer):
        take_step(model, optimizer)
        if WORLD.rank == 0:
            optimizer.averaged_model()
        raise KeyError("mine")
    optimizer.close()
    optimizer = distributed(model)
    take_step(model, optimizer)
    optimizer.averaged_model()
    optimizer.finish()


@pytest.mark.ranks(1, 2)
def test_what_cannot_be_recorded_is_refused_on_all_ranks(folder):
    model = network()
    optimizer = distributed(model)
    wrong = [
        ({"batch_size": 0}, "batch_size = 0: must be a whole number above 0"),
        ({"seed": "one"}, "seed = 'one': must be of type int"),
    ]
    for options, words in wrong:
        with pytest.raises(ValueError, match=words), grsgd.recording(folder / "mine.h5", optimizer, **options):
            pass
    with pytest.raises(ValueError, match="there is no directory"), grsgd.recording(folder / "no/x.h5", optimizer):
        pass
    with pytest.raises(ValueError, match="is a SGD"), grsgd.recording(folder / "x.h5", optimizer.optimizer):
        pass
    optimizer.finish()
    with pytest.raises(ValueError, match="after finish"), grsgd.recording(folder / "mine.h5", optimizer):
        pass
    assert not list(folder.iterdir())


def test_a_script_learns_which_rank_it_is():
    assert (grsgd.rank(), grsgd.size(), grsgd.is_main()) == (WORLD.rank, WORLD.size, WORLD.rank == 0)
    assert grsgd.local_rank() == WORLD.rank  # all are on one host
