"""Which records of a user's own loop are saved, and for which reason, when the loop ends early."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm import tags
from grsgd.comm.stop_signal import Stopped
from grsgd.job import launch, places, rescue
from grsgd.own_loop import loop_rescue
from grsgd.own_loop.loop_record import LoopMeasurements, LoopProgress
from grsgd.own_loop.loop_rescue import LoopRescue


class Mpi:
    """Rank 0 of three, with one message that has come."""

    rank, size = 0, 3

    def __init__(self, come: bytes | None = None):
        self.come, self.sent = come, []

    def isend(self, content, rank, tag):
        if rank == 1 and content == b"":
            raise RuntimeError("rank 1 has died")
        self.sent.append((content, rank, tag))

    def iprobe(self, tag):
        return tag == tags.ERROR_OF_ANOTHER and self.come is not None

    def recv(self, tag):
        return self.come


@pytest.fixture
def rescue_of(monkeypatch, tmp_path):
    """``rescue_of(mpi, lost)``: a rescue, and a list of what it saves; ``lost``: dead ranks that its host knows."""

    def make(mpi, lost=frozenset(), known=()):
        saved = []
        signal = SimpleNamespace(comm=SimpleNamespace(lost=known), reason="rank 2 has failed", request=None)
        signal.fail = lambda reason: saved.append(("fail", reason))
        monkeypatch.setattr(places, "ended_ranks", lambda processes, rank: set(lost))
        monkeypatch.setattr(launch, "stagger", lambda mpi: 0.0)
        monkeypatch.setattr(launch, "note_as_told", lambda error: saved.append(("told", str(error))))
        monkeypatch.setattr(loop_rescue, "FAILURE_SECONDS", 0.0 if mpi.come is None else 10.0)
        made = LoopRescue(mpi, signal, [], tmp_path / "run.h5", lambda in_a_hurry: in_a_hurry, {})
        made._save = lambda *arguments: saved.append(arguments)
        made._told = lambda seconds: False
        return made, saved

    return make


def test_a_signal_saves_at_once_what_can_be_saved_in_a_hurry(rescue_of):
    made, saved = rescue_of(Mpi())
    made.interrupted("SIGTERM")
    assert saved == [("SIGTERM", loop_rescue.SIGNAL_SECONDS, tags.RESCUE_AFTER_SIGNAL, set())]
    assert made.measured() is True and made.stop_signal.request == "SIGTERM"
    made.end("SIGTERM")
    assert saved[1:] == [("SIGTERM", loop_rescue.FAILURE_SECONDS, tags.RESCUE_AFTER_FAILURE, set())]
    assert made.measured() is False
    made.interrupted("SIGINT")
    assert len(saved) == 2, "a signal interrupts no rescue"


@pytest.mark.parametrize("lost, words", [({2}, "rank 2 lost"), ({2, 1}, "ranks 1, 2 lost")])
def test_a_signal_after_a_death_names_the_dead_ranks(lost, words, rescue_of, monkeypatch):
    made, saved = rescue_of(Mpi(), lost)
    assert made.cause("SIGTERM").startswith(words)
    monkeypatch.setattr(places, "ended_ranks", lambda processes, rank: {0})
    assert made.cause("SIGTERM").startswith(words), "only deaths before the signal count"
    made.interrupted("SIGTERM")
    assert saved[0][0].startswith(words) and saved[0][3] == {0}


def test_a_death_after_a_signal_is_not_its_cause(rescue_of, monkeypatch):
    made, _ = rescue_of(Mpi())
    assert made.cause("SIGTERM") == "SIGTERM"
    monkeypatch.setattr(places, "ended_ranks", lambda processes, rank: {1})
    assert made.cause("SIGINT") == "SIGTERM"


def test_an_error_of_this_rank_reaches_the_others(rescue_of):
    made, saved = rescue_of(Mpi(), known=(2,))
    made.failed(KeyError("a"))
    assert saved[0][0] == "fail" and "KeyError" in saved[0][1]
    assert saved[1] == ("rank 2 has failed", 0.0, tags.RESCUE_AFTER_FAILURE, {2})
    ((content, rank, tag),) = made.mpi.sent
    assert rank == 1 and tag == tags.ERROR_OF_ANOTHER and repr(pickle.loads(content)) == "KeyError('a')"


def test_an_error_that_cannot_be_pickled_is_sent_without_content(rescue_of):
    class Local(Exception):
        """A class that pickle does not find."""

    made, _ = rescue_of(Mpi())
    made.failed(Local())
    assert made.mpi.sent == [(b"", 2, tags.ERROR_OF_ANOTHER)], "and rank 1, which has died, gets nothing"


@pytest.mark.parametrize(
    "come, raised", [(pickle.dumps(KeyError("a")), KeyError), (b"", RuntimeError), (None, RuntimeError)]
)
def test_an_error_of_another_rank_is_raised_here(come, raised, rescue_of):
    made, saved = rescue_of(Mpi(come))
    with pytest.raises(raised, match="a" if raised is KeyError else "rank 2 has failed"):
        made.failed(Stopped("rank 2 has failed"))
    assert [each[0] for each in saved] == ["rank 2 has failed", "told"] and made.mpi.sent == []


def test_a_line_is_printed_once(rescue_of, monkeypatch):
    made, told = rescue_of(Mpi())[0], []
    monkeypatch.setattr(rescue.Rescue, "tell", lambda self, line, tag: told.append((line, tag)))
    made.tell("saved", 1)
    made.tell("saved again", 2)
    assert told == [("saved", 1)]


# ---- records


def test_a_rank_that_did_not_answer_has_unknown_times_and_no_steps():
    nothing, beginning = LoopMeasurements.of_nothing(), LoopMeasurements.of_beginning()
    assert nothing.measured["steps"] == nothing.measured["samples"] == 0 and nothing.elapsed == 0
    assert all(np.isnan(value) for key, value in nothing.measured.items() if key.endswith("_seconds"))
    assert not any(beginning.measured.values()) and not beginning.interface.any()
    assert nothing.traffic.shape == beginning.traffic.shape == (0, 4)


def test_progress_keeps_every_second_point_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("grsgd.own_loop.loop_record.MAX_POINTS", 4)
    progress = LoopProgress()
    for step in range(1, 10):
        progress.note(step / 10, step, 8 * step)
    assert progress.every == 4 and progress.points == [(0.0, 0, 0), (0.4, 4, 32), (0.8, 8, 64)]
