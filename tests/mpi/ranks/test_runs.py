"""Whole runs, one after the other in one job."""

import numpy as np
import pytest
import torch
from mpi4py import MPI

import grsgd
from grsgd import load_run
from grsgd.config import parse
from grsgd.errors import SetupError
from grsgd.job.run import run
from grsgd.training.loading import evaluate
from grsgd.training.saving import ModelFiles

SHORT = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": {"name": "digits", "batch_size": 16},
    "optimizer": {"lr": 0.1, "momentum": 0.9},
    "train": {"epochs": 4, "snapshots": 4, "target_accuracy": 0.5},
}
ALGORITHMS = ("ring_allreduce", "dpsgd", "grsgd")


@pytest.fixture
def finished(world, tmp_path_factory):
    """Runs with changed tables of the configuration; gives why it ended and the run, which is the same on all ranks."""

    def trained(algorithm, **tables):
        content = SHORT | {"algorithm": {"name": algorithm}} | tables
        out = world.bcast(tmp_path_factory.mktemp("run") / "run.h5")
        stopped = run(world, parse(content), out).reason
        return stopped, world.bcast(load_run(out) if world.rank == 0 else None)

    return trained


@pytest.mark.ranks(3, 4)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_run_file(algorithm, finished, world):
    stopped, found = finished(algorithm)
    assert stopped == found.attributes["reason"] == "epochs"
    assert found.attributes["algorithm"] == algorithm and found.attributes["ranks"] == world.size
    assert len(found.attributes["hosts"]) == world.size
    assert found.attributes["final_test_accuracy"] > 0.8
    curve = found.curve
    assert (np.diff(curve["time"]) >= 0).all() and (np.diff(curve["samples"]) >= 0).all()
    assert (curve["test_accuracy_min"] <= curve["test_accuracy_max"]).all()
    assert curve["samples"][-1] == found.ranks["samples"].sum() >= 4 * 1437
    M, sent = found.attributes["model_bytes"], found.traffic["sent"].sum(1)
    steps = found.ranks["steps"]
    if algorithm == "ring_allreduce":
        assert sent.sum() == steps[0] * 2 * (world.size - 1) * M and (curve["consensus_distance"] == 0).all()
    elif algorithm == "dpsgd":
        assert (sent == steps * 2 * M).all()
    else:
        assert (sent == found.traffic["messages"].sum(1) * (M + 8)).all()
    assert (found.ranks["compute_seconds"] > 0).all()


def test_same_seed_same_run(finished):
    curves = [finished("dpsgd")[1].curve for _ in range(2)]
    for key in curves[0].keys() - {"time"}:
        assert np.array_equal(curves[0][key], curves[1][key]), key


@pytest.mark.ranks(1)
@pytest.mark.parametrize("algorithm", ["dpsgd", "grsgd"])
def test_one_rank_equals_plain_sgd(algorithm, finished):
    losses = [finished(name)[1].curve["train_loss"] for name in ("ring_allreduce", algorithm)]
    assert np.array_equal(*losses)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_ends_after_seconds(algorithm, finished):
    stopped, found = finished(algorithm, train={"seconds": 0.8, "snapshots": 4})
    assert stopped == "seconds" and found.curve["time"][-1] > 0.7
    if algorithm != "grsgd":
        assert len(set(found.ranks["steps"])) == 1


@pytest.mark.parametrize(
    ("tables", "named"),
    [({"data": {"name": "imagenet"}}, "imagenet"), ({"data": {"name": "cifar-10"}}, "data_batch_1")],
)
def test_wrong_input_is_refused_on_all_ranks(tables, named, finished, tmp_path):
    tables["data"]["dir"] = str(tmp_path)
    with pytest.raises(SetupError, match=named):
        finished("grsgd", **tables)


@pytest.mark.ranks(3)
def test_what_differs_between_ranks_is_refused_on_all(finished, tmp_path, world):
    with pytest.raises(SetupError, match="the ranks differ: optimizer.lr: 0.1 on rank 0; 0.2 on rank 1; 0.3 on rank 2"):
        finished("grsgd", optimizer={"lr": (0.1, 0.2, 0.3)[world.rank]})
    (tmp_path / "input.txt").write_text("To be, or not to be. " * (200 + (world.rank == 1)))
    text = {"name": "text", "dir": str(tmp_path), "block": 8, "batch_size": 4}
    words = "the ranks differ: the number of training samples: 472 on ranks 0, 2; 474 on rank 1: data.name = 'text'"
    with pytest.raises(SetupError, match=words):
        finished("grsgd", data=text, model={"name": "gpt"}, task={"name": "language_modelling"}, train={"steps": 2})


class Counted(MPI.Intracomm):
    """Counts the communicators that are made out of it and not freed."""

    alive = 0

    def Dup(self):
        Counted.alive += 1
        return type(self)(super().Dup())

    def Create_group(self, group):
        Counted.alive += 1
        return type(self)(super().Create_group(group))

    def Free(self):
        Counted.alive -= 1
        super().Free()


@pytest.fixture
def counted(world):
    Counted.alive = 0
    return Counted(world)


@pytest.mark.parametrize("name", ["grsgd", "cssgd"])
def test_a_complete_run_leaves_no_communicator(name, counted, tmp_path_factory):
    out = tmp_path_factory.getbasetemp() / f"{name}.h5" if counted.rank == 0 else None
    content = {
        "algorithm": {"name": name},
        "model": {"name": "mlp", "hidden": [4]},
        "data": {"name": "synthetic", "samples": 80, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "train": {"steps": 3, "snapshots": 2},
    }
    if name == "cssgd" and counted.size == 1:
        content["algorithm"]["r"] = 1
    out = counted.bcast(out)
    ending = run(counted, parse(content), out)
    assert ending.reason == "steps" and ending.remaining.size == counted.size
    assert Counted.alive == 0
    if counted.rank == 0:
        assert load_run(out).attributes["reason"] == "steps"


def test_an_own_loop_leaves_no_communicator(counted):
    """But for the communicator by which ranks compare their calls, which the first loop of a process makes."""
    for _ in range(2):
        Counted.alive = 0
        model = torch.nn.Linear(2, 1)
        optimizer = grsgd.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), "grsgd", counted)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert Counted.alive > 0
        optimizer.finish()
        optimizer.finish()
    assert Counted.alive == 0


@pytest.mark.parametrize("algorithm", ["dpsgd", "easgd", "parameter_server"])
def test_the_saved_models_are_those_that_were_evaluated(algorithm, world, tmp_path_factory):
    if algorithm == "parameter_server" and world.size == 1:
        pytest.skip("a server and a worker are two ranks")
    folder = world.bcast(tmp_path_factory.mktemp("models"))
    train = {"epochs": 1, "snapshots": 3, "evaluate_replicas": False}
    models = ModelFiles(folder / "final.pt", folder / "best.pt")
    config = parse(SHORT | {"algorithm": {"name": algorithm}, "train": train})
    assert run(world, config, folder / "run.h5", models=models).reason == "epochs"
    if world.rank == 0:
        found = load_run(folder / "run.h5")
        accuracies = [evaluate(folder / "run.h5", best=best).value for best in (False, True)]
        final = found.attributes["final_test_accuracy"]
        assert accuracies == [final, max([*found.curve["test_accuracy"], final])]
        assert found.attributes["best_test_accuracy"] == accuracies[1]
    world.barrier()
