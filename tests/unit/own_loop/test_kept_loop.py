"""Checkpoints of a loop that goes on without ranks that die; the ranks are threads."""

import io
import shutil
import time

import pytest
import torch

from grsgd import Metric, load_run
from grsgd.comm.elastic.meeting import GO_ON
from grsgd.errors import ConfigError, RunFileError, SetupError
from grsgd.own_loop.asked_checkpoints import EndedBySignal
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.recording import recording
from grsgd.own_loop.surviving import surviving
from grsgd.runs.ending import TERMINATED
from grsgd.training.checkpoint_file import Header, read, write
from grsgd.training.checkpoint_folder import COMPLETE, checkpoints, file_of, name_of, parts
from grsgd.training.checkpoint_writer import CheckpointWriter
from tests.support.mortal_threads import die, on_mortal_threads
from tests.support.own_loop import leaves_nothing, loss, network, plain, vector

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]
TOGETHER = [
    ("ring_allreduce", {}),
    ("dpsgd", {}),
    ("sgp", {"tau": 1}),
    ("diloco", {"H": 4, "delay": 1, "fragments": 2}),
    ("lasgd", {}),
]
ALONE = [("grsgd", {}), ("gosgd", {}), ("gossip", {}), ("adpsgd", {})]
STEPS = 12


def trained(
    monkeypatch,
    kept,
    n,
    algorithm,
    options,
    deaths=(),
    steps=STEPS,
    every=4,
    out=None,
    name="draws",
    fast=None,
    asks=(),
):
    """Train ``n`` ranks with checkpoints; return what is left of them. ``deaths`` has the step of each rank's death,
    ``name`` is the name of the generator, and rank ``fast`` takes five steps in the time of one.

    ``asks`` has a rank, a step, and the reason with which this rank asks for a checkpoint in this step, as after a
    signal. If the loop ends by this request, return the exception of each rank.
    """
    deaths = dict(deaths)

    def work(mpi):
        model, draws = network(seed=mpi.rank), torch.Generator().manual_seed(mpi.rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
        optimizer = distribute(model, optimizer, algorithm, mpi, timeout=20.0, progress_mode="inline", **options)
        taken, drawn = [], []

        def loop(run=None):
            objects, items = {"scheduler": scheduler, name: draws}, range(99 if mpi.rank == fast else steps)
            for step in surviving(optimizer, items, checkpoints=kept, every=every, **objects):
                if step >= deaths.get(mpi.rank, steps):
                    optimizer.loop.kept.close()
                    die(mpi, optimizer.driver, optimizer.loop.beside)
                if deaths and step == max(deaths.values()) + 1:  # also on a loaded machine, the others are not through
                    wait_for_deaths(mpi, optimizer, deaths)
                if (mpi.rank, step) == asks[:2]:
                    optimizer.loop.recovery.asks_for_checkpoint(asks[2])
                taken.append(step)
                drawn.append(torch.randint(10**6, (), generator=draws).item())
                plain(model, optimizer, lambda k: loss(model, mpi.rank, k), step)
                scheduler.step()
                seconds = 0.01 if fast in (None, mpi.rank) else 0.05
                if fast is None and step >= steps - 2:
                    seconds = 0.3  # also on a loaded machine, others hear of a checkpoint before their last step
                time.sleep(0.0 if optimizer.algorithm.traits.synchronous else seconds)
                if run:
                    run.log(loss=1.0)
            if algorithm != "lasgd":  # whose last steps need the schedules of all ranks
                mpi.job.meet(("all are through",), mpi.group.members, mpi.rank, None)
            optimizer.finish()

        try:
            if out:
                with recording(out, optimizer, batch_size=8, metric=Metric("nats")) as run:
                    loop(run)
            else:
                loop()
        except EndedBySignal as ended:
            return ended
        return vector(model), taken, drawn, scheduler.last_epoch, optimizer.steps

    return on_mortal_threads(monkeypatch, n, work)


def wait_for_deaths(mpi, optimizer, deaths):
    deadline = time.monotonic() + 20
    while not mpi.job.dead >= deaths.keys():
        assert time.monotonic() < deadline
        optimizer.driver.poll()
        time.sleep(1e-3)


def whole(kept):
    return [(each.samples, each.ranks) for each in checkpoints(parts(kept, 0, 1)) if not each.problem]


@pytest.mark.parametrize("algorithm, options", TOGETHER + ALONE, ids=str)
def test_a_loop_goes_on_from_its_last_checkpoint(algorithm, options, monkeypatch, tmp_path):
    kept, is_free = tmp_path / "kept", (algorithm, options) in [*ALONE, ("lasgd", {})]
    expected = trained(monkeypatch, tmp_path / "whole", 3, algorithm, options)
    trained(monkeypatch, kept, 3, algorithm, options, steps=6)
    assert (kept / COMPLETE).exists() and whole(kept)[0][1] == 3
    at = whole(kept)[0][0]
    assert 4 <= at <= (18 if is_free else 6)
    found = trained(monkeypatch, kept, 3, algorithm, options)
    for (model, taken, drawn, last_epoch, steps), before in zip(found, expected, strict=True):
        assert taken == list(range(taken[0], STEPS)) and last_epoch == steps == STEPS
        assert drawn == before[2][taken[0] :]
        assert torch.equal(model, found[0][0])
        if not is_free:
            assert taken[0] == at == 4
        if algorithm in ("ring_allreduce", "dpsgd"):  # whose results do not depend on the times of messages
            assert torch.equal(model, before[0])
    assert is_free or whole(kept) == [(12, 3), (8, 3)]
    if algorithm == "dpsgd":  # all iterations are done, so the models are only averaged
        again = trained(monkeypatch, kept, 3, algorithm, options)
        assert all(taken == [] and torch.equal(model, found[0][0]) for model, taken, *_ in again)
    assert at < whole(kept)[0][0] and whole(kept)[0][1] == 3


@pytest.mark.parametrize(
    "algorithm, options, is_recorded",
    [("dpsgd", {}, False), ("sgp", {"tau": 1}, True), ("lasgd", {}, False), ("grsgd", {}, True)],
)
def test_a_signal_asks_for_a_checkpoint_and_the_end(algorithm, options, is_recorded, monkeypatch, tmp_path, capfd):
    """A later job goes on from there; dpsgd ends as without the interruption."""
    kept, out = tmp_path / "kept", tmp_path / "run.h5" if is_recorded else None
    expected = trained(monkeypatch, tmp_path / "whole", 3, algorithm, options)
    how = {"every": "600s", "out": out}
    ended = trained(monkeypatch, kept, 3, algorithm, options, asks=(1, 5, TERMINATED), **how)
    assert [(type(each), each.code, each.reason) for each in ended] == 3 * [(EndedBySignal, 75, TERMINATED)]
    last, ranks = whole(kept)[0]
    said = [line for line in capfd.readouterr().err.splitlines() if "the same command goes on from" in line]
    assert said == [f"grsgd: {TERMINATED}: the same command goes on from {kept / name_of(last)}"] and ranks == 3
    if is_recorded:
        saved = load_run(out)
        assert saved.attributes["ended"] == "interrupted" and saved.attributes["reason"] == TERMINATED
    found = trained(monkeypatch, kept, 3, algorithm, options, **how)
    for (model, taken, drawn, _, steps), before in zip(found, expected, strict=True):
        assert (6 if algorithm in ("dpsgd", "sgp") else 2) <= taken[0] and taken[-1] == STEPS - 1
        assert steps == STEPS and drawn == before[2][taken[0] :]
        assert torch.equal(model, before[0]) or algorithm != "dpsgd"


def test_the_lowest_living_rank_says_from_where_a_later_job_goes_on(monkeypatch, tmp_path, capfd):
    """Rank 0 has died."""
    found = trained(monkeypatch, tmp_path, 3, "grsgd", {}, {0: 2}, every="600s", asks=(1, 5, TERMINATED))
    assert [each and each.code for each in found] == [None, 75, 75]
    assert capfd.readouterr().err.count("the same command goes on from") == 1


def test_a_resumed_loop_whose_last_checkpoint_fails_goes_on_from_the_checkpoint_before(monkeypatch, tmp_path, capfd):
    trained(monkeypatch, tmp_path, 3, "dpsgd", {}, steps=6)
    monkeypatch.setattr(CheckpointWriter, "_write", lambda self, *_: self._has_failed(OSError("the disk is full")))
    ended = trained(monkeypatch, tmp_path, 3, "dpsgd", {}, every="600s", asks=(1, 7, TERMINATED))
    assert [each.code for each in ended] == [75] * 3
    assert f"goes on from {tmp_path / name_of(4)}\n" in capfd.readouterr().err


def test_a_signal_asks_for_a_checkpoint_after_which_the_loop_goes_on(monkeypatch, tmp_path):
    found = trained(monkeypatch, tmp_path, 3, "dpsgd", {}, every="600s", asks=(2, 5, GO_ON))
    assert [taken for _, taken, *_ in found] == 3 * [list(range(STEPS))]
    assert len(whole(tmp_path)) == 1 and 6 <= whole(tmp_path)[0][0] <= 8


def test_a_loop_that_a_signal_ends_without_room_for_a_checkpoint_has_no_code_for_going_on(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(CheckpointWriter, "_write", lambda self, *_: self._has_failed(OSError("the disk is full")))
    ended = trained(monkeypatch, tmp_path, 3, "dpsgd", {}, every="600s", asks=(1, 5, TERMINATED))
    assert [each.code for each in ended] == [130] * 3
    assert f"grsgd: {TERMINATED}: there is no checkpoint\n" in capfd.readouterr().err


@pytest.mark.parametrize("algorithm", [("dpsgd", {}), ("lasgd", {}), ("sgp", {"tau": 1}), ("grsgd", {})], ids=str)
def test_checkpoints_after_deaths_and_another_number_of_ranks(algorithm, monkeypatch, tmp_path):
    """Ranks 0 and 2 of four die; the two ranks that are left take checkpoints, from which two and then three go on."""
    kept = tmp_path / "kept"
    found = trained(monkeypatch, kept, 4, *algorithm, {0: 3, 2: 6}, steps=10, every=2)
    assert [each is None for each in found] == [True, False, True, False]
    assert whole(kept)[0][1] == 2 and whole(kept)[0][0] >= 8
    first = whole(kept)[0][0]
    for ranks in (2, 3):
        found = trained(monkeypatch, kept, ranks, *algorithm, steps=first + 4 * ranks, every=2)
        for model, taken, _, last_epoch, steps in found:
            assert torch.equal(model, found[0][0]) and torch.isfinite(model).all()
            assert taken[-1] == first + 4 * ranks - 1 and last_epoch == steps == first + 4 * ranks
        assert whole(kept)[0][1] == ranks


def test_ranks_behind_a_dead_rank_take_checkpoints(monkeypatch, tmp_path):
    """Also in the next job, which goes on from the iteration of rank 0."""
    trained(monkeypatch, tmp_path, 3, "gosgd", {}, {1: 30}, steps=14, every=2, fast=1)
    assert whole(tmp_path)[0][1] == 2
    for ranks, steps in ((2, 22), (3, 30)):
        before = whole(tmp_path)[0][0]
        trained(monkeypatch, tmp_path, ranks, "gosgd", {}, steps=steps, every=2)
        newest = whole(tmp_path)[0]
        assert newest[1] == ranks and newest[0] > before


@pytest.mark.parametrize(
    "algorithm, options, every",
    [("ring_allreduce", {}, 2), ("sgp", {"tau": 1}, 2), ("lasgd", {}, 2), ("dpsgd", {}, "0.001s")],
    ids=str,
)
@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_death_at_a_checkpoint(algorithm, options, every, step, monkeypatch, tmp_path):
    """No rank waits for a checkpoint that others have left behind, and later ones are whole."""
    found = trained(monkeypatch, tmp_path, 3, algorithm, options, {1: step}, every=every)
    left = [each for each in found if each is not None]
    assert len(left) == 2 and torch.equal(left[0][0], left[1][0])
    assert whole(tmp_path)[0][1] == 2


def test_a_recording_goes_on_with_the_loop(monkeypatch, tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "run.h5"
    trained(monkeypatch, kept, 2, "dpsgd", {}, steps=6, out=out)
    trained(monkeypatch, kept, 2, "dpsgd", {}, out=out)
    run = load_run(out)
    assert run.ranks["steps"].tolist() == [STEPS] * 2 and run.ranks["samples"].tolist() == [8 * STEPS] * 2
    assert run.curve["step"].tolist() == [*range(1, STEPS + 1)] and run.attributes["resumed"] == 2 * 4 * 8
    trained(monkeypatch, kept, 3, "dpsgd", {}, steps=STEPS + 4, out=out)
    assert load_run(out).ranks["steps"].tolist() == [4] * 3


def test_what_a_loop_cannot_go_on_from(monkeypatch, tmp_path):
    kept = tmp_path / "kept"
    trained(monkeypatch, kept, 2, "dpsgd", {}, steps=5)
    with pytest.raises(SetupError, match="is of dpsgd, for ring_allreduce: name another folder$"):
        trained(monkeypatch, kept, 2, "ring_allreduce", {})
    for ranks in (2, 3):
        copy = shutil.copytree(kept, tmp_path / f"{ranks}")  # the lock ends with the process
        with pytest.raises(ConfigError, match="has states of draws, scheduler, .* given mine, scheduler: use the"):
            trained(monkeypatch, copy, ranks, "dpsgd", {}, name="mine")
    path = kept / name_of(4) / file_of(1)
    header, state, _ = read(path)
    path.unlink()
    with pytest.raises((SetupError, RunFileError), match="rank-0001.ckpt of 2 ranks is missing; no"):
        trained(monkeypatch, kept, 2, "dpsgd", {})
    other = {"own_loop": state["own_loop"] | {"optimizer": "Adam"}}
    for change, words in (
        (other, "has the state of Adam, for SGD: name another folder$"),
        ({"own_loop": None}, "is a checkpoint of `grsgd train`: name another folder$"),
    ):
        for rank in range(2):
            write(kept / name_of(4) / file_of(rank), Header(header.id, 4, 2, rank), state | change, "")
        with pytest.raises(SetupError, match=words):
            trained(monkeypatch, kept, 2, "dpsgd", {})
    shutil.rmtree(kept)
    kept.write_text("")
    with pytest.raises((SetupError, ConfigError), match="no checkpoint can be written there"):
        trained(monkeypatch, kept, 2, "dpsgd", {})


class Unfit:
    """Object whose state is in no file."""

    def state_dict(self):
        return {"self": self}

    def load_state_dict(self, state):
        """Do nothing."""


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"checkpoints": io.BytesIO()}, "must be the path of a folder$"),
        ({"checkpoints": "x", "every": "often"}, r"surviving\(\): every = often: expected steps"),
        ({"checkpoints": "x", "ema": torch.nn.Linear(1, 1)}, None),
        ({"checkpoints": "x", "mine": Unfit()}, r"state_dict\(\) of mine has values other than numbers"),
    ],
)
def test_arguments(arguments, words, monkeypatch, tmp_path):
    def work(mpi):
        model = network()
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi, progress_mode="inline")
        for _ in surviving(optimizer, range(1), **arguments):
            pass
        optimizer.finish()

    monkeypatch.chdir(tmp_path)
    if words is None:
        on_mortal_threads(monkeypatch, 1, work)
    else:
        with pytest.raises((SetupError, ConfigError), match=words):
            on_mortal_threads(monkeypatch, 2, work)


def test_all_ranks_ask_for_the_same_checkpoints(monkeypatch, tmp_path):
    def work(mpi):
        model = network()
        optimizer = distribute(model, torch.optim.SGD(model.parameters(), 0.1), "dpsgd", mpi, progress_mode="inline")
        surviving(optimizer, range(1), checkpoints=tmp_path if mpi.rank else None)

    with pytest.raises(SetupError, match="the ranks differ: checkpoints: None on rank 0; .* on rank 1: all ranks must"):
        on_mortal_threads(monkeypatch, 2, work)
