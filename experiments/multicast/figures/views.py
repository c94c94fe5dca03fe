"""The views of the runs: the measured numbers, and the numbers by each of three ways to count packets."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from experiments.multicast.figures.plan import CONDITIONS, IP, Turn
from experiments.multicast.measure import RATE
from experiments.papers.cssgd_2021.over_nodes import ACCOUNTINGS, ONCE, PER_RECEIVER, counted, megabytes_of
from experiments.papers.cssgd_2021.tasks import ASGD, Method, Network
from experiments.tables.numbers import part_of_a_step
from experiments.tables.targets import Found
from experiments.tables.wording import SOURCES
from grsgd.runs.measures import seconds_per_step
from grsgd.runs.run_file import Run
from grsgd.units import rate

COUNTED = {Network(f"counted {name}", "", "shared"): how for name, how in ACCOUNTINGS.items()}
VIEWS = IP, *COUNTED


def title(view: Network) -> str:
    return ", ".join(filter(None, [view.name, SOURCES[view.source]]))


def group_runs(runs: Mapping[Turn, Run]) -> Found:
    """Return the runs by task, view, method and number of nodes, as the tables of the papers need them.

    The seed of each run is replaced by its round.
    """
    by_key: dict[tuple, list[Run]] = {}
    for turn, run in runs.items():
        run = replace(run, attributes=run.attributes | {"seed": turn.round})
        for view in VIEWS:
            seen = run if view == IP else accounted(run, turn.method, COUNTED[view])
            by_key.setdefault((turn.task, view, turn.method, turn.nodes), []).append(seen)
    return Found(CONDITIONS, by_key)


def accounted(run: Run, method: Method, how: tuple[str, str]) -> Run:
    """Return a copy of the run with counted bytes, and with the seconds that the medium needs to carry these bytes.

    In the copy of the run, the counted values replace the measured values. The copy has the computing time of the
    measured run. In ASGD, the medium carries messages while other nodes compute, so only the seconds beyond the
    computing count.
    """
    steps, computing = run.ranks["steps"], run.ranks["compute_seconds"]
    megabytes = counted({method: megabytes_of(run)}, method, how)
    seconds = steps * megabytes * 1e6 / rate(RATE)
    if method == ASGD:
        seconds = np.maximum(seconds - computing, 0.0)
    sent = np.full_like(run.traffic["interface"], megabytes * 1e6 * steps_of(run) / len(steps))
    return replace(
        run,
        ranks=run.ranks | {"communicate_seconds": seconds, "wait_seconds": np.zeros(len(steps))},
        traffic=run.traffic | {"interface": sent},
    )


def steps_of(run: Run) -> float:
    """Return the mean number of steps over the ranks that train."""
    steps = run.ranks["steps"]
    return float(steps[steps > 0].mean())


def megabytes_sent(run: Run) -> float:
    """Return the MB that the network interfaces of all nodes send in a step.

    For a run from `accounted`, the returned number is the counted MB.
    """
    return float(run.traffic["interface"][:, 0].sum()) / steps_of(run) / 1e6


# ---- functions that list the numbers of runs


class FigureRun(NamedTuple):
    """The first columns of a CSV row: task, number of nodes, method and round, which identify a run."""

    task: str
    nodes: int
    method: str
    round: int


class FigureNumbers(NamedTuple):
    """The numbers of a run in the CSV file; most are means per step, summed over all nodes.

    seconds: seconds of a step. computing: seconds in which a node computes in a step. interfaces: MB that network
    interfaces sent, including headers, acknowledgements and repairs. once, per_receiver: MB of payload, in which a
    packet to several receivers counts once, or once per receiver. repaired: MB that were sent again after a loss.
    samples: samples of the whole run.
    """

    seconds: float
    computing: float
    interfaces: float
    once: float
    per_receiver: float
    repaired: float
    samples: int


def list_numbers(runs: Mapping[Turn, Run]) -> dict[FigureRun, FigureNumbers]:
    return {
        FigureRun(turn.task.name, turn.nodes, turn.method.name, turn.round): FigureNumbers(
            seconds_per_step(run),
            float(part_of_a_step(run, "compute").mean()),
            megabytes_sent(run),
            *(megabytes_of(run)[what] for what in (ONCE, PER_RECEIVER)),
            float(np.nansum(run.traffic["repaired"])) / steps_of(run) / 1e6,
            int(run.curve["samples"][-1]),
        )
        for turn, run in runs.items()
    }
