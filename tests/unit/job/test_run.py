"""Whole runs of `grsgd.job.run`, on ranks that are threads, against the same runs in simulated time."""

from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.errors import RunFileError, SetupError
from grsgd.job import conclusion, rescue
from grsgd.job import run as runs
from grsgd.job.signals import EXIT_CODE
from grsgd.job.startup import StartUp
from grsgd.runs.run_file import load_run
from grsgd.simulator.run import simulate
from grsgd.testing.simulated import network_of
from grsgd.training.gradients import OwnBatches
from tests.support.exhaustive import exhaustive_unless
from tests.support.runs_on_threads import allow_threads
from tests.support.threads import on_threads
from tests.support.training import CONSTANT, config


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """``trained(n, config)``: the run file, and the communicators that the ranks have made."""
    allow_threads(monkeypatch)
    made = []

    class Communicators(runs.Communicators):
        def __init__(self, backend):
            super().__init__(backend)
            made.append(self)

    monkeypatch.setattr(runs, "Communicators", Communicators)

    def train(n, chosen):
        out = tmp_path / f"{n}.h5"
        endings = on_threads(monkeypatch, n, lambda mpi: runs.run(mpi, chosen, out))
        assert {ending.reason for ending in endings} == {"steps"}
        return load_run(out), made

    return train


RUNS = [(name, n) for name in ("ring_allreduce", "dpsgd", "sgp", "local_sgd") for n in (1, 2, 3)]


@pytest.mark.parametrize("algorithm, n", exhaustive_unless(lambda name, n: n == 3 or name == "dpsgd", RUNS))
def test_a_run_is_what_is_simulated(algorithm, n, trained, tmp_path):
    """But for the times, and which models the ranks start with: their threads share torch's random numbers."""
    chosen = config(algorithm, steps=8)
    run, made = trained(n, chosen)
    simulate(chosen, n, network_of(), tmp_path / "simulated.h5", CONSTANT)
    expected = load_run(tmp_path / "simulated.h5")
    for column in ("step", "samples"):
        np.testing.assert_array_equal(run.curve[column], expected.curve[column])
    for column in ("steps", "samples"):
        np.testing.assert_array_equal(run.ranks[column], expected.ranks[column])
    for counter in ("sent", "sent_once", "messages", "headers"):
        np.testing.assert_array_equal(run.traffic[counter], expected.traffic[counter])
    for name in ("algorithm", "ranks", "seed", "config", "parameters", "model_bytes", "train_samples", "batch_size"):
        assert run.attributes[name] == expected.attributes[name]
    assert run.attributes["commit"] == "0123" and run.attributes["clock"] == "wall"
    assert run.attributes["mpi"] == "threads 1.0" and list(run.attributes["hosts"]) == ["here"] * n
    assert run.attributes["transfer"] == "host"
    assert np.isfinite(run.curve["test_accuracy"]).all() and np.isfinite(run.curve["train_loss"]).all()
    if n == 1:
        for column in ("train_loss", "test_accuracy"):
            np.testing.assert_array_equal(run.curve[column], expected.curve[column])
    assert len(made) == n
    for each in made:
        assert len(each.copies) >= 5 and all(backend.mpi.freed for backend in each.copies)


def test_a_run_is_saved_before_it_is_evaluated(monkeypatch, tmp_path, trained):
    """Accuracies may take long."""
    evaluate, found = conclusion.evaluate_run, []

    def late(trainer, *arguments):
        found.append(load_run(tmp_path / "1.h5"))
        return evaluate(trainer, *arguments)

    monkeypatch.setattr(conclusion, "evaluate_run", late)
    whole, _ = trained(1, config("dpsgd"))
    (first,) = found
    assert first.attributes["reason"] == "steps" and np.isnan(first.curve["test_accuracy"]).all()
    np.testing.assert_array_equal(first.curve["train_loss"], whole.curve["train_loss"])


def test_a_rank_that_stops_is_heard_by_one_that_waits_for_it(monkeypatch, trained, tmp_path):
    gradient, calls = OwnBatches.next_gradient, []

    def broken(source):
        losses = gradient(source)
        (rank,) = losses
        calls.append(rank)
        return dict.fromkeys(losses, float("nan")) if rank == 0 and calls.count(0) == 3 else losses

    monkeypatch.setattr(OwnBatches, "next_gradient", broken)
    chosen = config("ring_allreduce", comm={"timeout": 10.0})
    endings = on_threads(monkeypatch, 2, lambda mpi: runs.run(mpi, chosen, tmp_path / "run.h5"))
    assert {ending.reason for ending in endings} == {"non-finite loss (nan) on rank 0 at step 2"}
    run = load_run(tmp_path / "run.h5")
    assert run.attributes["reason"] == endings[0].reason and run.ranks["steps"].tolist() == [2, 2]


def test_a_file_that_cannot_be_written_at_first_is_written_in_the_end(monkeypatch, trained, capsys):
    save, failures = conclusion.save, ["no room", None]

    def saves(out, run):
        if why := failures.pop(0):
            raise RunFileError(why)
        return save(out, run)

    monkeypatch.setattr(conclusion, "save", saves)
    monkeypatch.setattr(rescue, "save", saves)
    run, _ = trained(1, config("dpsgd"))
    assert np.isfinite(run.curve["test_accuracy"]).all() and failures == []
    assert "grsgd: no room" in capsys.readouterr().err


def test_the_start_of_a_run_is_told_by_one_rank(monkeypatch, trained, tmp_path, capsys):
    """Time in which other ranks are waited for is no other phase's."""
    noted = []

    class Noting(StartUp):
        def passed(self, phase):
            super().passed(phase)
            noted.append(phase)

    on_threads(monkeypatch, 1, lambda mpi: runs.run(mpi, config("dpsgd"), tmp_path / "1.h5", Noting(shown=True)))
    assert noted == ["MPI", "data", "model", "other ranks", "algorithm", "other ranks"]
    assert capsys.readouterr().err.count("start-up of rank 0: ") == 1
    on_threads(monkeypatch, 2, lambda mpi: runs.run(mpi, config("dpsgd"), tmp_path / "2.h5", StartUp(shown=True)))
    assert capsys.readouterr().err.count("start-up of rank ") == 1


def job_that_hands_over(can: bool):
    """A job whose run is complete but for the accuracies."""
    rescue = SimpleNamespace(out="a.h5", hand_over=lambda reason, starts, lost: can and reason == "epochs")
    return SimpleNamespace(rescue=rescue, trainer=SimpleNamespace(lost=frozenset()))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "end, words",
    [
        (lambda mpi: runs.before_training(mpi, "Ctrl-C"), "Ctrl-C before training began: there is no run file"),
        (
            lambda mpi: runs.while_evaluating(job_that_hands_over(True), mpi, "epochs", "Ctrl-C"),
            "a.h5: Ctrl-C while accuracies were computed: they follow",
        ),
        (
            lambda mpi: runs.while_evaluating(job_that_hands_over(False), mpi, "epochs", "Ctrl-C"),
            "a.h5: Ctrl-C while accuracies were computed: they are missing",
        ),
    ],
)
def test_a_signal_before_or_after_training_ends_the_process(end, words, rank, monkeypatch):
    done = []
    monkeypatch.setattr(runs, "say", done.append)
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(runs.os, "_exit", done.append)
    end(SimpleNamespace(rank=rank))
    assert done.pop() == EXIT_CODE == 130
    assert [line[: len(words)] for line in done] == [words] * (rank == 0)


@pytest.mark.parametrize(
    "sections, reason",
    [
        ({"data": {"replication": 3}}, "data.replication = 3 with 2 ranks"),
        ({"train": {"steps": 8, "target_accuracy": 0.9, "stop_at_target": True}}, "only in simulated time"),
    ],
)
def test_what_is_wrong_is_refused_on_all_ranks_before_anything_is_made(trained, sections, reason):
    with pytest.raises(SetupError, match=reason):
        trained(2, config("dpsgd", **sections))


def test_a_file_that_cannot_be_written_is_found_out_by_rank_0(monkeypatch, trained, tmp_path):
    with pytest.raises(SetupError, match="^rank 0: ") as caught:
        on_threads(monkeypatch, 2, lambda mpi: runs.run(mpi, config("dpsgd"), tmp_path / "no folder" / "x" / "run.h5"))
    assert "no folder" in str(caught.value)


@pytest.mark.parametrize("takes_one, rank, lines", [(True, 0, 0), (False, 0, 1), (False, 1, 0)])
def test_a_run_without_checkpoints_says_so_on_rank_0_after_sigusr2(takes_one, rank, lines, monkeypatch):
    asked, said = [], []
    monkeypatch.setattr(runs, "say", said.append)
    recovery = SimpleNamespace(asks_for_checkpoint=lambda reason: asked.append(reason) or takes_one)
    runs.take_checkpoint(SimpleNamespace(mpi=SimpleNamespace(rank=rank), trainer=SimpleNamespace(recovery=recovery)))
    assert asked == [""] and len(said) == lines and all("SIGUSR2: no checkpoint" in line for line in said)


@pytest.mark.parametrize(
    "takes_one, reason, done", [(False, "SIGTERM", [{}]), (True, "SIGTERM", [{"stop": False}]), (True, None, [])]
)
def test_a_signal_saves_unless_ranks_have_agreed_on_a_checkpoint(takes_one, reason, done):
    reason, saved = reason or runs.ASKED_TO_END, []
    job = SimpleNamespace(
        trainer=SimpleNamespace(recovery=SimpleNamespace(asks_for_checkpoint=lambda reason: takes_one)),
        rescue=SimpleNamespace(interrupted=lambda *arguments, **options: saved.append((arguments, options))),
    )
    runs.while_training(job, reason)
    assert saved == [((reason,), options) for options in done]
