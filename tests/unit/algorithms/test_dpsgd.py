"""D-PSGD with steps without an exchange."""

import numpy as np
import pytest

from grsgd.testing import AlgorithmTests
from grsgd.testing.quadratic import STEPS, Job, M, Reference, random_speeds

WHEN = [{"period": 3}, {"first_exchange": 17}, {"period": 4, "first_exchange": 5}, {"first_exchange": STEPS}]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("topology", ["ring", "one-peer-exponential", "base-3"])
def test_against_a_dense_reference(topology, when):
    job = Job("dpsgd", 5, random_speeds(1), random=np.random.default_rng(1), topology=topology, **when)
    graph, exchanges, reference = job.algorithms[0].topology, 0, Reference(5)
    first, period = when.get("first_exchange", 0), when.get("period", 1)
    for k in range(STEPS):
        W = np.eye(5)
        if k >= first and (k - first) % period == 0:
            W = graph.matrix(exchanges)
            exchanges += 1
        before = reference.X.copy()
        reference.step(k)
        reference.X += W @ before - before
    job.train()
    assert np.abs(job.X - reference.X).max() < 1e-12
    assert exchanges == len(range(first, STEPS, period)) and job.nothing_is_left()
    if topology == "ring":
        assert job.sent() == exchanges * 5 * 2 * M


def test_one_merge_at_the_end():
    """Ranks that never exchange end with the mean of what each has trained by itself."""
    job, alone = Job("dpsgd", 4, first_exchange=STEPS + 1).train(), Reference(4)
    for k in range(STEPS):
        alone.step(k)
    assert job.sent() == 0
    assert np.abs(job.average().X - alone.X.mean(0)).max() < 1e-12


class TestLate(AlgorithmTests):
    algorithm = "dpsgd"
    options = {"first_exchange": 6, "period": 2}
