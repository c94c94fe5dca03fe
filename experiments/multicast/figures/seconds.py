"""About how long the runs of the figures take, before any was made."""

from coding.cost import cost_in_models
from experiments.multicast.figures.plan import CPU, SMALL, STEPS, Turn
from experiments.multicast.measure import RATE
from experiments.papers.cssgd_2021.tasks import ASGD
from experiments.runner.costs import Seconds
from grsgd.units import rate

AROUND_SECONDS = 6.0
"""About what a run takes beside its steps, with its part of making a testbed and of starting a job."""
SCHEMES = {"ssgd": "ssgd-multicast", "coded": "coded", "grouped": "grouped-rs", "ring_allreduce": "ring"}
"""The names that `coding.cost` has for configurations, where those are others."""


def expect_seconds(turn: Turn) -> Seconds:
    """Return the seconds of a run, by what its bytes take on the medium."""
    small = SMALL[turn.task]
    computing = small.compute_seconds / CPU * (turn.method.r or 1)
    return Seconds(STEPS * (computing + models(turn) * small.model_bytes / rate(RATE)), AROUND_SECONDS)


def models(turn: Turn) -> float:
    """Return what all nodes send in a step, in units of M; a packet to several counts once."""
    n, method = turn.nodes, turn.method
    if method == ASGD:
        return 2.0 * n
    scheme = "per-block" if method.config == "ssgd" and method.r else SCHEMES.get(method.config, "ssgd-unicast")
    return float(cost_in_models(scheme, n, method.r or 1).once)
