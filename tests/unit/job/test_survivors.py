"""The lines of a run file on ranks whose processes have died, in training or after it."""

from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.job import survivors
from grsgd.job.survivors import RankEnd, attempt
from grsgd.runs import measures
from grsgd.training.record import RankMeasurements
from tests.support.runs import fake_run


class Left:
    """A communicator of the one process that is left; ``others``: the parts that others bring."""

    rank, size = 0, 1

    def __init__(self, others=()):
        self.others = others

    def allgather(self, value):
        return [value, *self.others] if isinstance(value, dict) else [value]

    def Split(self, *_):
        return self

    def Dup(self):
        return self


def part(rank, deaths=(), samples=64):
    record = RankMeasurements.of_nothing()
    record.measured |= {"steps": 4, "samples": samples}
    return RankEnd(rank, record, "epochs", 2.0, list(deaths), 0.5)


@pytest.fixture
def tried(monkeypatch):
    """``tried(part, known, others)``: an attempt of one of three ranks; what it evaluates."""
    monkeypatch.setattr(survivors, "Communicator", lambda backend: backend)
    monkeypatch.setattr(survivors, "MpiBackend", lambda mpi, timeout: mpi)
    monkeypatch.setattr(survivors, "without", lambda rank, *_: f"no shard of {rank}")
    found = []
    monkeypatch.setattr(survivors, "evaluate", lambda job, records, attributes, *_: found.append((records, attributes)))
    data = SimpleNamespace(train=SimpleNamespace(labels=np.zeros(3)))
    survival = SimpleNamespace(membership=SimpleNamespace(size=3))
    job = SimpleNamespace(
        survival=survival,
        rescue=SimpleNamespace(attributes={}),
        trainer=SimpleNamespace(config=None, data=data, recovery=SimpleNamespace(last=None)),
        driver=SimpleNamespace(timeout=1.0),
    )

    def tried(mine, known, others=()):
        attempt(job, mine, None, known, Left(others), [])
        return found[-1]

    return tried


def test_a_rank_that_dies_while_accuracies_are_computed_has_trained_to_the_end(tried):
    mine = part(0, deaths=[(1, 1, 0.5, None)])
    known = {0: mine, 2: part(2)}  # of the attempt before
    for _ in range(2):  # an attempt more changes nothing
        records, attributes = tried(mine, known)
        assert attributes["lost"] == [1, 2] and [record.measured["samples"] for record in records] == [64, 0, 64]
        assert records[0].warnings == [] and records[1].warnings == ["no shard of 1"]
        (line,) = records[2].warnings
        assert "has died after training" in line and "shard" not in line and "not known" not in line
        assert records[0].extra["death_rank"][0].tolist() == [1] and not records[2].extra


def test_what_another_process_knows_of_it_is_enough(tried):
    mine = part(1)
    records, _ = tried(mine, {1: mine}, [{0: part(0), 1: mine}])
    assert records[0].measured["samples"] == 64 and "after training" in records[0].warnings[0]
    (line,) = records[2].warnings
    assert "after training" in line and "its measurements are not known" in line
    assert records[1].extra["death_rank"][0].tolist() == []


def test_epochs_count_what_lost_ranks_have_read():
    run = fake_run(ranks=4, snapshots=5)
    assert measures.samples(run) == 4000 and measures.epochs(run) == 2.0
    run.ranks["samples"][1:3] = 0
    assert measures.samples(run) == 4000 and measures.epochs(run) == 2.0
    run.ranks["samples"][0] = 5000  # of a server that has dropped some of them
    assert measures.samples(run) == 6000
    run.curve = {name: column[:0] for name, column in run.curve.items()}
    assert measures.samples(run) == 6000
