"""Recorded loops on ranks that are threads; on processes: tests/mpi/ranks/test_recorded_loops.py."""

import atexit
import math
import os
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from grsgd import Metric
from grsgd.errors import UsageError
from grsgd.job import launch
from grsgd.own_loop import distributed_optimizer, given, loop_rescue, recording
from grsgd.own_loop.distribute import distribute
from grsgd.runs.loggers import CsvLogger
from grsgd.runs.run_file import load_run
from grsgd.training import description
from tests.support.threads import on_threads

BATCH = 4
NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """What the ranks leave in the process, and ask of it."""
    monkeypatch.setattr(launch, "abort_on_error", lambda mpi: None)
    monkeypatch.setattr(description, "commit", lambda: "0123")
    monkeypatch.setattr(recording, "is_main", lambda: True)
    yield
    for optimizer in distributed_optimizer.unfinished:
        atexit.unregister(optimizer._check_finished)
    distributed_optimizer.unfinished.clear()


class Net(nn.Module):
    """A model that is trained by its own forward, or by a method, as those of Lightning are."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.loss(x)

    def loss(self, x):
        return self.second(self.first(x * self.scale)).square().mean()


def distributed_of(mpi, model=None, algorithm="dpsgd"):
    model = model or Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, distribute(model, sgd, algorithm, mpi, timeout=10.0, progress_mode="inline")


def take_steps(optimizer, loss, steps, batch=BATCH):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(torch.ones(batch, 4)).backward()
        optimizer.step()


def alone_on_one(monkeypatch, work):
    return on_threads(monkeypatch, 1, work)[0]


# ---- what is refused before the loop


def refused(monkeypatch, *arguments, **options):
    def work(mpi):
        _, optimizer = distributed_of(mpi)
        path, given_optimizer = [*arguments, optimizer][:2]
        with pytest.raises(UsageError) as caught, recording.recording(path, given_optimizer, **options):
            pytest.fail("it records")
        optimizer.finish()
        return str(caught.value)

    line = alone_on_one(monkeypatch, work)
    assert line.isprintable() and len(line) < 500
    return line


@pytest.mark.parametrize(
    "arguments, options, words",
    [
        ([None], {}, "the first argument is None: give the name of the run file"),
        ([3], {}, "the first argument is 3"),
        ([b"x.h5"], {}, "the first argument is b'x.h5'"),
        ([""], {}, "the first argument is ''"),
        (["x.h5", "y.h5"], {}, "the optimizer is a str: give what distribute"),
        (["x.h5"], {"loggers": None}, "loggers = None: must be a list of objects with log"),
        (["x.h5"], {"loggers": "tensorboard"}, "loggers = 'tensorboard': must be a list"),
        (["x.h5"], {"loggers": [None]}, r"loggers = \[None\]: must be a list"),
        (["x.h5"], {"loggers": [CsvLogger]}, "must be a list of objects"),
        (["x.h5"], {"batch_size": 0}, "batch_size = 0: must be a whole number above 0"),
        (["x.h5"], {"batch_size": True}, "batch_size = True: must be"),
        (["x.h5"], {"batch_size": 4.0}, "batch_size = 4.0: must be"),
        (["x.h5"], {"metric": "accuracy"}, "metric = 'accuracy': must be a grsgd.Metric"),
        (["x.h5"], {"target_accuracy": 93}, "target_accuracy = 93: must be a fraction from 0 to 1"),
        (["x.h5"], {"metric": Metric("top5", "%", True), "target": 93.0}, "target = 93: must be a fraction"),
        (["x.h5"], {"train_samples": 0}, "train_samples = 0: must be 1 or more"),
        (["x.h5"], {"label": "a\0b"}, r"label = 'a.x00b': does not fit into a run file"),
        (["x.h5"], {"dataset": NOT_UTF8}, r"config = .*dataset = \"caf.*udce9.*: does not fit"),
        (["x.h5"], {"seed": 2**64}, "seed = 18446744073709551616: does not fit"),
        (["x.h5"], {"train_samples": 2**64}, "train_samples = 18446744073709551616: does not fit"),
        (["x.h5"], {"folder": [{"a": NOT_UTF8}]}, r"config = .*caf.udce9.*: does not fit"),
        (["x.h5"], {NOT_UTF8: 1}, r"config = .*caf.udce9.*: does not fit"),
        (["no folder/x.h5"], {}, "no folder/x.h5: there is no directory"),
    ],
)
def test_what_cannot_be_recorded_is_one_line_before_the_loop(monkeypatch, tmp_path, arguments, options, words):
    monkeypatch.chdir(tmp_path)
    assert re.search(words, refused(monkeypatch, *arguments, **options))
    assert not os.listdir(tmp_path)


def test_a_loop_that_survives_is_finished_in_the_block(monkeypatch, tmp_path):
    def work(mpi):
        _, optimizer = distributed_of(mpi)
        with pytest.raises(RuntimeError, match="call finish.* in the block"):
            with recording.recording(tmp_path / "x.h5", optimizer):
                optimizer.loop.survives = True
        optimizer.loop.survives = False
        optimizer.finish()

    alone_on_one(monkeypatch, work)


def test_a_batch_size_and_a_target_may_be_numpys(monkeypatch, tmp_path):
    def work(mpi):
        model, optimizer = distributed_of(mpi)
        options = {"batch_size": np.int64(4), "target_accuracy": np.float32(0.5)}
        with recording.recording(tmp_path / "x.h5", optimizer, **options) as run:
            take_steps(optimizer, model, 2)
            optimizer.finish()
        return run.result

    run = alone_on_one(monkeypatch, work)
    assert run.attributes["batch_size"] == 4 and run.attributes["target_accuracy"] == 0.5
    assert run.ranks["samples"].tolist() == [8] and run.ranks["steps"].tolist() == [2]


def test_arguments_of_the_program_that_no_file_can_hold_are_escaped(monkeypatch, tmp_path):
    monkeypatch.setattr(given.sys, "argv", [f"/{NOT_UTF8}/x.py", NOT_UTF8, "é"])
    run = recorded(monkeypatch, tmp_path / "x.h5", lambda run: None)
    assert run.attributes["script"] == r"/caf\xe9/x.py" and run.attributes["arguments"] == [r"caf\xe9", "é"]


# ---- what is logged


def recorded(monkeypatch, path, log, loggers=()):
    """The run of two steps; ``log(run)`` is called after each."""

    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(path, optimizer, loggers=loggers) as run:
            for _ in range(2):
                take_steps(optimizer, model, 1)
                log(run)
            optimizer.finish()
        assert repr(run.result.attributes) == repr(load_run(path).attributes)
        return run.result

    return alone_on_one(monkeypatch, work)


@pytest.mark.parametrize("name", [".", NOT_UTF8, "a\0b", "", "a/b", "time"])
def test_a_name_that_no_run_file_can_hold_is_refused_where_it_is_logged(monkeypatch, tmp_path, name):
    def log(run):
        with pytest.raises(ValueError, match="cannot be a column"):
            run.log(**{name: 1.0})
        run.log(loss=1)

    run = recorded(monkeypatch, tmp_path / "x.h5", log)
    assert run.curve["train_loss"].tolist() == [1, 1]


def test_a_name_for_each_step_is_refused_before_the_file_cannot_be_read(monkeypatch, tmp_path):
    monkeypatch.setattr(given, "MAX_NAMES", 3)

    def log(run):
        if run.step == 1:
            for i in range(3):
                run.log(**{f"loss {i}": i})
        else:
            with pytest.raises(ValueError, match="'loss 3' is one name more than 3"):
                run.log(**{"loss 3": 3})
            with pytest.raises(TypeError, match="loss 2 must be one number"):
                run.log(**{"loss 2": 10**400})

    assert {"loss 0", "loss 2"} <= set(recorded(monkeypatch, tmp_path / "x.h5", log).curve)


def test_a_log_that_cannot_be_written_does_not_cost_the_run(monkeypatch, tmp_path, capsys):
    class Full(CsvLogger):
        def _writer(self):
            raise OSError(28, "No space left on device")

    logger = CsvLogger(tmp_path / "x.csv")
    logger.__class__ = Full
    run = recorded(monkeypatch, tmp_path / "x.h5", lambda run: run.log(loss=run.step), [logger])
    assert run.curve["train_loss"].tolist() == [1, 2]
    said = capsys.readouterr().err
    assert said.count("No space left on device: nothing more is written there") == 1


def test_a_loop_that_diverges_does_not_leave_an_earlier_file_in_silence(monkeypatch, tmp_path, capsys):
    path = tmp_path / "x.h5"
    first = recorded(monkeypatch, path, lambda run: run.log(loss=1))
    assert first.attributes["replication"] == 1 and "train_samples" not in first.attributes
    assert capsys.readouterr().err == ""

    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(path, optimizer) as run:
            take_steps(optimizer, model, 1)
            run.log(loss=math.nan)
            optimizer.finish()
        return run.result

    assert alone_on_one(monkeypatch, work).attributes["ended"] == "diverged"
    other, reason = tmp_path / "x.interrupted.h5", "non-finite loss (nan) on rank 0 at step 1"
    line = f"grsgd: {other}: diverged: {reason}; {path} is still the file of an earlier run\n"
    assert capsys.readouterr().err == line
    assert load_run(path).attributes["reason"] == first.attributes["reason"] == "end of the loop"


# ---- a model whose own forward is not called


@pytest.mark.parametrize("n", [1, 2])
def test_samples_and_computing_are_counted_where_a_part_is_called(monkeypatch, tmp_path, n):
    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(tmp_path / "x.h5", optimizer):
            take_steps(optimizer, model.loss, 6)
            assert not model.second._forward_pre_hooks
            optimizer.finish()
        assert not model.first._forward_pre_hooks

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        on_threads(monkeypatch, n, work)
    said = [str(warning.message) for warning in told]
    run = load_run(tmp_path / "x.h5")
    assert run.ranks["samples"].tolist() == [6 * BATCH] * n and run.curve["samples"][-1] == 6 * n * BATCH
    assert (run.ranks["compute_seconds"] > 0).all()
    assert len([line for line in said if "its part 'first'" in line and "batch_size" in line]) == 1
    assert any("its part 'first'" in line for line in run.attributes["warnings"])
    assert not any("not all samples" in line for line in run.attributes["warnings"])


def test_parts_are_not_looked_at_where_the_model_is_called(monkeypatch, tmp_path):
    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(tmp_path / "x.h5", optimizer) as run:
            for _ in range(3):
                take_steps(optimizer, model, 1)
                assert not model.first._forward_pre_hooks and not model.second._forward_pre_hooks
            model.first(torch.ones(7, 4)).sum().backward()  # a part by itself, too
            take_steps(optimizer, model, 1)
            optimizer.finish()
        return run.result

    run = alone_on_one(monkeypatch, work)
    assert run.ranks["samples"].tolist() == [4 * BATCH] and "warnings" not in run.attributes


def test_another_part_that_is_called_first_counts_in_its_steps(monkeypatch, tmp_path):
    """Two networks that are trained in turn, in one model."""

    def work(mpi):
        model, optimizer = distributed_of(mpi)
        losses = [model.loss, lambda x: model.second(x[:, :3]).sum()]
        with recording.recording(tmp_path / "x.h5", optimizer) as run:
            for step in range(6):
                take_steps(optimizer, losses[step % 2], 1)
            optimizer.finish()
        return run.result

    with pytest.warns(RuntimeWarning, match="its part 'second'"):
        run = alone_on_one(monkeypatch, work)
    assert run.ranks["samples"].tolist() == [6 * BATCH]


def test_where_nothing_is_seen_that_is_said(monkeypatch, tmp_path):
    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(tmp_path / "x.h5", optimizer) as run:
            take_steps(optimizer, model.eval(), 8)
            assert not model.first._forward_pre_hooks
            optimizer.finish()
        return run.result

    with pytest.warns(RuntimeWarning, match="5 steps had no forward pass of the model in training mode"):
        run = alone_on_one(monkeypatch, work)
    assert run.ranks["samples"].tolist() == [0]
    assert any("8 of 8 steps had no forward pass" in line for line in run.attributes["warnings"])
    assert any("not all samples were counted" in line for line in run.attributes["warnings"])


# ---- going on


def part(mpi, path, steps, kept=None, loggers=(), name="ring_allreduce"):
    """Train ``steps`` steps in a recording, going on from ``kept``; returns the run, and what is kept at the end."""
    model, optimizer = distributed_of(mpi, algorithm=name)
    if kept:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    with recording.recording(path, optimizer, loggers=loggers) as run:
        for _ in range(steps):
            take_steps(optimizer, model, 1)
            run.log(loss=run.step, accuracy=0.5 if run.step % 2 else None)
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(kept, path.with_suffix(f".{mpi.rank}.pt"))
        take_steps(optimizer, model, 1)  # lost: after what was kept
        run.log(loss=1000)
        optimizer.finish()
    return run.result, torch.load(path.with_suffix(f".{mpi.rank}.pt"), weights_only=True)


@pytest.mark.parametrize("n", [1, 2])
def test_a_training_that_goes_on_goes_on_with_its_recording(monkeypatch, tmp_path, n):
    def work(mpi):
        csv = tmp_path / f"{mpi.rank}.csv"
        first, kept = part(mpi, tmp_path / "x.h5", 5, loggers=[CsvLogger(csv)])
        second, again = part(mpi, tmp_path / "x.h5", 3, kept, [CsvLogger(csv)])
        return first, second, part(mpi, tmp_path / "x.h5", 2, again)[0]

    first, second, third = on_threads(monkeypatch, n, work)[0]
    assert second.curve["train_loss"].tolist() == [*range(1, 9), 1000]
    rows = (tmp_path / f"{n - 1}.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [[f"{i}", f"{i}.0"] for i in range(1, 9)] + [["9", "1000.0"]]
    assert third.curve["step"].tolist() == [*range(1, 12)]
    assert third.curve["samples"].tolist() == [n * BATCH * step for step in range(1, 12)]
    assert (np.diff(third.curve["time"]) >= 0).all() and third.curve["test_accuracy"][0] == 0.5
    assert third.ranks["steps"].tolist() == [11] * n and third.ranks["samples"].tolist() == [11 * BATCH] * n
    for column in ("sent", "messages"):
        assert (third.traffic[column] * 6 == first.traffic[column] * 11).all()
    assert third.attributes["resumed"] == 8 * n * BATCH and "resumed" not in first.attributes
    times = sum(third.ranks[f"{name}_seconds"] for name in ("compute", "communicate", "wait", "other"))
    assert (times <= third.attributes["wall_seconds"] + 1e-6).all()


def test_the_file_of_a_training_on_other_ranks_is_not_replaced(monkeypatch, tmp_path):
    def work(mpi):
        _, kept = part(mpi, tmp_path / "x.h5", 2)
        for state in (kept["optimizer"], kept["optimizer"]["grsgd_recording"]):
            state.pop("grsgd", None)
            state["ranks"] = 2
        with pytest.raises(UsageError, match="x.h5 is the file of the run .* goes on from, of rank 0 of 2"):
            part(mpi, tmp_path / "x.h5", 2, kept)
        return part(mpi, tmp_path / "y.h5", 2, kept)[0]

    other = alone_on_one(monkeypatch, work)
    assert other.curve["step"].tolist() == [1, 2, 3] and "resumed" not in other.attributes
    assert load_run(tmp_path / "x.h5").curve["step"].tolist() == [1, 2, 3]


def test_staleness_and_what_was_kept_after_the_end_go_on_too(monkeypatch, tmp_path):
    def work(mpi):
        model, optimizer = distributed_of(mpi)
        with recording.recording(tmp_path / "x.h5", optimizer) as run:
            take_steps(optimizer, model, 3)
            optimizer.finish()
        kept = optimizer.state_dict()
        kept.pop("grsgd", None)
        model, optimizer = distributed_of(mpi)
        optimizer.load_state_dict(kept)
        with recording.recording(tmp_path / "x.h5", optimizer) as second:
            take_steps(optimizer, model, 2)
            optimizer.finish()
        return run.result, second.result

    first, second = on_threads(monkeypatch, 2, work)[0]
    assert first.staleness["count"].tolist() == [[3], [3]] and second.staleness["count"].tolist() == [[5], [5]]
    assert second.ranks["steps"].tolist() == [5, 5]


# ---- ends


def test_a_rank_that_was_killed_is_the_reason_and_not_sigterm(monkeypatch):
    """Also where the main program comes to its end before the thread of the signal."""
    saved, gone = [], {1}
    monkeypatch.setattr(loop_rescue.places, "ended_ranks", lambda *_: gone)
    monkeypatch.setattr(loop_rescue.LoopRescue, "_save", lambda self, reason, *_: saved.append(reason))
    for first in ("interrupted", "end"):
        signal = SimpleNamespace(request=None, comm=SimpleNamespace(lost=frozenset()))
        one = loop_rescue.LoopRescue(SimpleNamespace(rank=0, size=3), signal, [], "x.h5", None, {})
        if first == "interrupted":
            one.interrupted("terminated (SIGTERM)")
            assert signal.request == saved[-1]
        one.end(one.cause("terminated (SIGTERM)"))
    assert saved == ["rank 1 lost: its process has died"] * 3
    gone.clear()
    one = loop_rescue.LoopRescue(SimpleNamespace(rank=0, size=3), signal, [], "x.h5", None, {})
    assert one.cause("interrupted (Ctrl-C)") == "interrupted (Ctrl-C)"
    gone |= {1, 2}
    assert one.cause("interrupted (Ctrl-C)") == "interrupted (Ctrl-C)", "these have ended because of it"
