"""``r = "auto"`` on real ranks: what is measured of computing, coding and each transport, and that all ranks agree."""

import os
import time

import numpy as np
import pytest

from grsgd.algorithms.before_run import Load
from grsgd.algorithms.redundancy import allowed_redundancies, choose, decided_by_one, measure
from grsgd.comm.coded.ip_multicast import IpMulticast
from grsgd.comm.coded.multicast import Multicast, Unicast
from grsgd.comm.coded.multicast_link import Settings

pytestmark = pytest.mark.skipif(bool(os.environ.get("GRSGD_TEST_TRANSFER")), reason="not for arrays on a GPU")

TRANSPORTS = {
    "multicast": Multicast,
    "unicast": Unicast,
    "ip-multicast": lambda comm: IpMulticast(comm, Settings(rate=2e8, mtu=1500)),
    "ip-multicast with losses": lambda comm: IpMulticast(comm, Settings(rate=2e8, mtu=1500, loss=0.05)),
}
LENGTH = 50_000
SAMPLES = 16
PER_BLOCK, PER_SAMPLE = 4e-3, 0.25e-3
"""Seconds that a pause takes in place of a gradient."""
SLOW, FACTOR = 1, 4.0


def load(comm, slow=1.0, slowdown=1.0, scale=1.0):
    """Pauses, those of one rank longer by a factor that is measured, and by one that is configured."""
    factor = scale * (slow if comm.rank == SLOW else 1.0)

    def gradient(samples):
        return lambda: time.sleep(factor * (PER_BLOCK + samples * PER_SAMPLE))

    configured = np.ones(comm.size)
    configured[min(SLOW, comm.size - 1)] = slowdown
    return Load(comm.size * SAMPLES, gradient, configured, np.zeros((1, comm.size)))


def chosen(comm, driver, scheme, transport, load):
    """What is measured, which redundancy is chosen, and why."""
    n = comm.size
    allowed = allowed_redundancies(scheme, n, load.batch)
    measured = driver.run(measure(scheme, allowed, TRANSPORTS[transport](comm), driver, load, LENGTH, np.empty))
    r, why = choose(scheme, n, allowed, LENGTH, measured)
    return measured, driver.run(decided_by_one(comm, r)), why


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("scheme", ["coded", "grouped-rs"])
def test_all_ranks_measure_and_choose_the_same(comm, driver, scheme, transport):
    measured, r, why = chosen(comm, driver, scheme, transport, load(comm))
    everywhere = comm.backend.mpi.allgather((measured.codec, measured.packets, r, why))
    assert everywhere == [everywhere[0]] * comm.size
    gradients = comm.backend.mpi.allgather(measured.computing.gradients.tobytes())
    assert gradients == [gradients[0]] * comm.size
    assert why.startswith(f"r = {r}: ") and "adding up and coding" in why
    assert set(measured.codec) == set(range(1, comm.size + 1)) and min(map(min, measured.codec.values())) > 0
    if comm.size > 1:
        assert measured.packets.exchange.to(1) > 0 and min(min(toll) for toll in measured.packets[:3]) >= 0
        assert measured.packets.sends_copies == (transport == "unicast")


@pytest.mark.ranks(2, 3)
def test_a_slow_rank_and_what_every_block_takes_are_found(comm, driver):
    measured, _, _ = chosen(comm, driver, "coded", "multicast", load(comm, FACTOR, scale=15.0))
    factors = 15.0 * np.where(np.arange(comm.size) == SLOW, FACTOR, 1.0)
    assert np.median(measured.computing.gradients, axis=0) == pytest.approx(factors * 8e-3, rel=0.3)
    assert measured.computing.per_block == pytest.approx(factors * PER_BLOCK, rel=0.5)


@pytest.mark.ranks(3)
def test_a_rank_that_will_be_slow_makes_redundancy_dear(comm, driver):
    """By a factor in the configuration, for which nobody waits in the trial."""
    begin = time.perf_counter()
    _, r, why = chosen(comm, driver, "coded", "unicast", load(comm, slowdown=1000.0))
    assert r == 1, why
    assert comm.backend.mpi.allreduce(time.perf_counter() - begin) / comm.size < 10
