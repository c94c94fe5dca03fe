"""A whole conversation on ranks that are threads, and links and clocks that hurt."""

import itertools
import time

import pytest

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.doctor import clocks, links
from grsgd.doctor.clocks import ClockOffset
from grsgd.doctor.conversation import Conversation
from grsgd.doctor.links import MeasuredPair, PairRequest
from grsgd.doctor.post import SilentRank
from grsgd.simulator.calibration import eager
from grsgd.simulator.calibration.pairs import Effort
from tests.support.threads import on_threads

HOSTS = ["a", "a", "b"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(links, "EFFORT", Effort({8: 3, 1024: 3}, 2, 0.1, 0.5))
    monkeypatch.setattr(links, "PAIR_SECONDS", 0.5)
    monkeypatch.setattr(eager, "EAGER_BYTES", [1024])
    monkeypatch.setattr(clocks, "ROUNDS", 2)


def conversation(mpi, seconds=10.0):
    end = time.monotonic() + seconds
    return Conversation(Communicator(MpiBackend(mpi)), lambda: max(end - time.monotonic(), 0.0))


def test_rank_0_learns_everything(monkeypatch):
    monkeypatch.setattr(links, "PAIR_SECONDS", 20.0)

    def talk(mpi):
        mine = conversation(mpi, 60.0)
        if mpi.rank:
            return mine.answer({"rank": mpi.rank})
        told = mine.gather({"rank": 0}, 20.0)
        found = told, mine.offsets(HOSTS), [mine.measured(link) for link in links.plan(HOSTS)]
        assert mine.end(20.0) == []
        return found

    told, offsets, measured = on_threads(monkeypatch, 3, talk)[0]
    assert told == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
    assert [each.rank for each in offsets] == [2] and abs(offsets[0].seconds) < 1
    assert [each.link.ranks for each in measured] == [(0, 1), (0, 2), (1, 2)]
    assert all(each.latency > 0 and each.bandwidth > 0 and not each.error for each in measured)
    assert [each.eager for each in measured] == [1024, 1024, None]


def test_gpu_memory_is_tried_in_half_of_the_time_that_is_left(monkeypatch):
    def transfer(mpi, local_rank, seconds):
        tried.append((mpi.rank, local_rank, seconds))
        return "staged"

    def talk(mpi):
        mine = Conversation(Communicator(MpiBackend(mpi)), lambda: 15.0)
        if mpi.rank:
            return mine.answer("facts")
        mine.gather("facts", 10.0)
        return mine.transfer([0, 1]), mine.end(10.0)

    tried = []
    monkeypatch.setattr("grsgd.doctor.gpus.transfer", transfer)
    assert on_threads(monkeypatch, 2, talk)[0] == ("staged", [])
    assert sorted(tried) == [(0, 0, 7.5), (1, 1, 7.5)]


def test_a_rank_that_does_not_come_is_known(monkeypatch):
    def talk(mpi):
        mine = conversation(mpi, 10.0)
        if mpi.rank == 1:
            mine.post.send("facts", 0)
        mpi.Barrier()
        return mine.gather("facts", 0.3) if mpi.rank == 0 else None

    assert on_threads(monkeypatch, 3, talk)[0] == ["facts", "facts", None]


def test_a_rank_that_stops_answering_is_named(monkeypatch):
    monkeypatch.setattr("grsgd.doctor.conversation.CLOCK_SECONDS", 0.2)

    def talk(mpi):
        mine = conversation(mpi, 1.0)
        if mpi.rank:
            return None
        with pytest.raises(SilentRank, match="rank 1 has not answered within 0.2 s"):
            mine.offsets(["a", "b"])
        error = mine.measured(PairRequest((0, 1), False, False)).error
        assert "rank 1" in error
        return mine.end(0.2)

    assert on_threads(monkeypatch, 2, talk)[0] == [1]


def test_a_blocked_link_and_an_unused_network_and_a_slow_link_hurt():
    def of(pair, **values):
        return MeasuredPair(PairRequest(pair, False, False), 1e-5, **{"bandwidth": 1e10, "eager": None} | values)

    healthy = [of((0, rank)) for rank in range(1, 5)]
    cases = [
        ([of((0, 1), error="waited 5 s for a message")], False, "firewall"),
        ([of((0, 1), bandwidth=1e8)], True, "do not use InfiniBand"),
        ([*healthy, of((0, 5), bandwidth=1e8)], False, "leave out one of the two hosts"),
    ]
    for measured, has_rdma, words in cases:
        found = [each for each in links.findings(measured, 6, has_rdma) if each.remedy]
        assert len(found) == 1 and words in found[0].remedy
    assert not any(each.remedy for each in links.findings(healthy, 6, True))
    assert "grsgd run -n 4" in links.findings([], 1, False)[0].value


MANY = [f"h{rank // 4}" for rank in range(400)]


@pytest.mark.parametrize("hosts", [list("aaa"), ["a"] * 40, MANY, list("abcdefghijk")])
def test_few_pairs_of_many_ranks_are_measured(hosts):
    plan = links.plan(hosts)
    pairs = [link.ranks for link in plan]
    assert len(pairs) == len({*pairs}) <= links.MAX_PAIRS and all(a < b for a, b in pairs)
    assert {link.one_host for link in plan} == {a == b for a, b in itertools.combinations(hosts, 2)}
    assert len([link for link in plan if link.with_eager]) == len({link.one_host for link in plan})
    assert all(link.one_host == (hosts[link.ranks[0]] == hosts[link.ranks[1]]) for link in plan)


def test_a_clock_that_goes_wrong_hurts(monkeypatch):
    def talk(mpi):
        mine = conversation(mpi)
        if mpi.rank:
            return clocks.answer(mine.post, 5.0, lambda: time.time() + 100)
        return clocks.offset(mine.post, 1, 5.0)

    found = on_threads(monkeypatch, 2, talk)[0]
    assert found.seconds == pytest.approx(100, abs=5)
    assert "NTP" in clocks.findings([found], 2)[0].remedy
    assert clocks.findings([ClockOffset(1, 0.01, 0.001)], 2)[0].verdict == "ok"
    assert "of 2 of 5 hosts" in clocks.findings([ClockOffset(1, 0.01, 0.001)], 5)[0].value
