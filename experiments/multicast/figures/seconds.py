"""Approximate durations of the runs for the figures, for the forecast that is printed before any run exists."""

from coding.cost import cost_in_models
from experiments.multicast.figures.plan import CPU, SMALL, STEPS, Turn
from experiments.multicast.measure import RATE
from experiments.papers.cssgd_2021.tasks import ASGD
from experiments.runner.costs import Seconds
from grsgd.units import rate

AROUND_SECONDS = 6.0
"""Approximate seconds of a run in addition to its steps, with its part of the time in which testbeds and jobs start."""
SCHEMES = {"ssgd": "ssgd-multicast", "coded": "coded", "grouped": "grouped-rs", "ring_allreduce": "ring"}
"""Names of schemes in `coding.cost`, by the name of the configuration."""


def expect_seconds(turn: Turn) -> Seconds:
    """Return the seconds that a run probably takes, from the time of its computing and from its bytes on the medium."""
    small = SMALL[turn.task]
    computing = small.compute_seconds / CPU * (turn.method.r or 1)
    return Seconds(STEPS * (computing + models(turn) * small.model_bytes / rate(RATE)), AROUND_SECONDS)


def models(turn: Turn) -> float:
    """Return the bytes that all nodes send in a step, divided by the bytes of a model.

    A packet to several receivers counts once.
    """
    n, method = turn.nodes, turn.method
    if method == ASGD:
        return 2.0 * n
    scheme = "per-block" if method.config == "ssgd" and method.r else SCHEMES.get(method.config, "ssgd-unicast")
    return float(cost_in_models(scheme, n, method.r or 1).once)
