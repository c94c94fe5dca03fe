"""Packets by IP multicast over this host's interface to itself: sums, bytes, losses, and what is not let through."""

import os
import socket
import time
from functools import partial

import numpy as np
import pytest

from coding.cost import cost_in_bytes
from coding.fixed_point import FixedPoint
from grsgd.algorithms.transport_trial import choose_transport
from grsgd.comm.backend import MpiBackend
from grsgd.comm.coded import multicast_link
from grsgd.comm.coded.asking import ANSWER_SECONDS
from grsgd.comm.coded.ip_multicast import IpMulticast
from grsgd.comm.coded.multicast import Multicast
from grsgd.comm.coded.multicast_link import Settings, connect, try_out
from grsgd.comm.coded.packets import Outgoing
from grsgd.comm.coded.repairs import Repairs
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.sockets import NoMulticast
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock
from grsgd.comm.driver import MpiDriver, WaitTimeout
from tests.support.random_blocks import fill

pytestmark = pytest.mark.skipif(bool(os.environ.get("GRSGD_TEST_TRANSFER")), reason="not for arrays on a GPU")

KINDS = SCHEMES | {"per-block": PerBlock, "local-sum": LocalSum}
FAST = Settings(rate=2e8)
LATE = 1


def make(comm, kind, r, length, settings=FAST):
    transport = IpMulticast(comm, settings)
    return KINDS[kind](transport, comm.size, r, comm.rank, length, FixedPoint(), np.empty)


def check(comm, driver, kind, r, length, steps=3, settings=FAST):
    scheme = make(comm, kind, r, length, settings)
    before = comm.traffic.sent.sum(), comm.traffic.sent_once
    driver.run(scheme.open())
    for step in range(steps):
        expected = fill(scheme, kind, (comm.size, r, length, step))
        driver.run(scheme.add_up())
        np.testing.assert_array_equal(scheme.total, expected)
    driver.run(scheme.close())
    name = "ssgd-multicast" if kind == "local-sum" else kind
    cost = cost_in_bytes(name, comm.size, r, length).times(steps)
    assert comm.traffic.sent.sum() - before[0] == cost.copies[comm.rank]
    assert comm.traffic.sent_once - before[1] == cost.sent[comm.rank]
    return scheme.transport


@pytest.mark.parametrize("kind", KINDS)
def test_totals_and_bytes(comm, driver, kind):
    for r in range(1, comm.size + 1):
        for length in (60 * 1000, 61, 2):
            check(comm, driver, kind, r, length)


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.parametrize("loss, burst", [(0.01, 1.0), (0.05, 1.0), (0.2, 5.0)])
@pytest.mark.parametrize("kind", ["coded", "grouped-rs", "local-sum"])
def test_totals_with_losses(comm, driver, kind, loss, burst):
    settings = FAST._replace(loss=loss, burst=burst, seed=1, mtu=1500)
    r = min(2, comm.size - 1)
    check(comm, driver, kind, r, 100_003, 3, settings)
    lost = comm.backend.mpi.allreduce(comm.traffic.lost)
    repaired = comm.backend.mpi.allreduce(comm.traffic.repaired)
    assert 0 < repaired <= r * 1432 * lost, "by each holder at most once"


@pytest.mark.ranks(3, 4, 5)
@pytest.mark.parametrize("kind", ["coded", "uncoded", "grouped-direct"])
def test_others_repair_what_a_sender_does_not(comm, driver, kind, monkeypatch):
    """One rank answers late what is lacking of its packets; others that hold the block are faster."""
    repair, move, answer = Outgoing.repair, IpMulticast.move, Repairs.answer_with_block
    waiting, asked = [], []

    def later(outgoing, rank, bits):
        waiting.append((time.perf_counter() + 3 * ANSWER_SECONDS, outgoing, rank, bits))

    def moved(transport):
        while waiting and waiting[0][0] <= time.perf_counter():
            repair(*waiting.pop(0)[1:])
        move(transport)

    def counted(repairs, told):
        asked.append(told.sender)
        answer(repairs, told)

    monkeypatch.setattr(Repairs, "answer_with_block", counted)
    if comm.rank == LATE:
        monkeypatch.setattr(Outgoing, "repair", later)
        monkeypatch.setattr(IpMulticast, "move", moved)
    check(comm, driver, kind, 2, 100_003, 3, FAST._replace(loss=0.2, burst=5.0, seed=1, mtu=1500))
    assert comm.backend.mpi.allreduce(len(asked)) > 0 or kind == "grouped-direct"


@pytest.mark.ranks(3, 4)
def test_the_same_bits_as_by_broadcasts(comm, driver):
    totals = []
    for transport in (IpMulticast(comm, FAST), IpMulticast(comm, FAST._replace(loss=0.05)), Multicast(comm)):
        scheme = SCHEMES["coded"](transport, comm.size, 2, comm.rank, 50_001, FixedPoint(), np.empty)
        driver.run(scheme.open())
        fill(scheme, "coded", 1)
        driver.run(scheme.add_up())
        totals.append(scheme.total.tobytes())
        driver.run(scheme.close())
    assert len(set(totals)) == 1


@pytest.mark.ranks(2, 3, 4, 5)
def test_ranks_at_different_paces(comm, driver):
    random = np.random.default_rng(comm.rank)
    scheme = make(comm, "coded", min(2, comm.size - 1), 5000)
    driver.run(scheme.open())
    for step in range(30):
        expected = fill(scheme, "coded", step)
        if random.random() < 0.3:
            time.sleep(0.003)
        driver.run(scheme.add_up())
        assert (scheme.total == expected).all()
    driver.run(scheme.close())


@pytest.mark.ranks(2, 3, 5)
def test_a_trial_finds_the_others_and_a_rate(comm, driver):
    def trial(settings):
        link = yield from connect(comm, settings)
        rate = yield from try_out(comm, link, time.perf_counter)
        link.sockets.close()
        return link.part, rate

    part, rate = driver.run(trial(Settings()))
    assert part == 8928 and rate > 1e6
    assert comm.backend.mpi.allgather(rate) == [rate] * comm.size
    part, _ = driver.run(trial(Settings(mtu=1500)))
    assert part == 1428 or part == 1430 // 4 * 4
    chosen, reason = driver.run(choose_transport(comm, "auto", Settings(), False))
    assert chosen["transport"] == "ip-multicast" and chosen["rate"].endswith("bit")
    assert reason.startswith(f"transport = ip-multicast: all {comm.size} ranks hear each other; ")
    assert not comm.traffic.sent.any(), "no part of the training"


@pytest.mark.ranks(2, 3, 4)
def test_a_rank_that_hears_nothing_is_named(comm, driver, monkeypatch):
    """Its sockets listen to another group than the others send to; all refuse, and auto takes broadcasts."""
    if comm.rank == LATE:
        elsewhere = lambda interface, group, port, room: Sockets(interface, "239.255.255.254", port, room)  # noqa: E731
        Sockets = multicast_link.Sockets
        monkeypatch.setattr(multicast_link, "Sockets", elsewhere)
    for wanted in ("ip-multicast", "auto"):
        choose = partial(choose_transport, comm, wanted, Settings(), False)
        if wanted == "auto":
            chosen, reason = driver.run(choose())
            assert chosen["transport"] == "multicast" and reason.startswith("transport = multicast: by MPI, for ")
            continue
        with pytest.raises(NoMulticast) as error:
            driver.run(choose())
        host = socket.gethostname()
        line = rf"datagrams of 8998 bytes from rank \d on {host} do not reach rank \d on {host}; allowed here: "
        error.match(f"^transport = 'ip-multicast': {line}")
        assert comm.backend.mpi.allgather(str(error.value)) == [str(error.value)] * comm.size


@pytest.mark.ranks(2, 3)
def test_an_interface_that_is_not_there_is_refused_on_all_ranks(comm, driver):
    for settings, line in (
        (Settings(interface="eth77"), "rank 0: no interface 'eth77'; this host has: "),
        (Settings(mtu=9100), "rank 0: mtu = 9100: the interface 127.0.0.1 takes at most 9000 bytes"),
    ):
        with pytest.raises(NoMulticast, match=line):
            driver.run(connect(comm, settings))


@pytest.mark.ranks(2, 3)
def test_a_rank_that_does_not_take_part_is_named(world, comm):
    def meet():
        yield world.Ibarrier()

    scheme = make(comm, "coded", 1, 1000)
    patient = MpiDriver(comm.rank, timeout=20, progress_mode="inline")
    patient.run(scheme.open())
    expected = fill(scheme, "coded", 0)
    error = ""
    if comm.rank != LATE:
        hasty = MpiDriver(comm.rank, timeout=1, progress_mode="inline")
        try:
            hasty.run(scheme.add_up())
        except WaitTimeout as timeout:
            error = str(timeout)
    patient.run(meet())
    transport = scheme.transport

    def rest():
        yield [*transport._outgoing.values(), *transport._incoming.values()]

    patient.run(scheme.add_up() if comm.rank == LATE else rest())
    patient.run(scheme.close())
    if comm.rank == LATE:
        assert (scheme.total == expected).all()
    else:
        assert error.startswith(f"rank {comm.rank} waited 1 s for packet "), error
        assert "by IP multicast (" in error and (f"rank {LATE} has not begun" in error or "0 of " in error), error


@pytest.mark.ranks(1)
def test_one_rank(comm, driver):
    assert isinstance(comm.backend, MpiBackend)
    check(comm, driver, "coded", 1, 10)
