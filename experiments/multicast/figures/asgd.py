"""The samples that ASGD needs, relative to synchronous algorithms.

ASGD needs more samples, because its gradients are computed on old models.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.papers import ROOT
from experiments.papers.cssgd_2021 import best_redundancy
from experiments.papers.cssgd_2021.tasks import ASGD, Task
from experiments.runner import records
from experiments.runner.conditions import Conditions
from experiments.runner.hosts import Hosts
from experiments.runner.learning_rates import MissingRun
from experiments.runner.needs import Need, to_target
from experiments.runner.plan import Plan
from experiments.runner.sample import Sample
from experiments.runner.scale import DESK
from experiments.runner.store import Store

RECORDED = ROOT / "docs" / "results" / DESK.name
"""Folder of the recorded runs and tables of experiments at the scale (size) named "desk"."""


def factors(task: Task, nodes: Iterable[int]) -> dict[int, float]:
    """Return, by number of nodes, how many times as many samples ASGD needs to the benchmark accuracy as SSGD.

    The ratio of samples is computed from medians over the recorded trainings of one version of the code. Numbers of
    nodes without recorded trainings are left out.
    """
    with TemporaryDirectory() as folder:
        records.unpack(RECORDED, Path(folder))
        store = Store(Path(folder), Hosts(1, 1.0), is_joined=True)
        conditions = Conditions(DESK, emulated=True)
        needs = best_redundancy.needs(task, conditions)
        stores = map(store.with_code, store.other_codes())
        plans = (Plan(conditions, each, {"recorded": needs}) for each in stores)
        return max((factors_of(plan, task, nodes) for plan in plans), key=len)


def factors_of(plan: Plan, task: Task, nodes: Iterable[int]) -> dict[int, float]:
    """Return the ratios for `factors`, from the trainings that one version of the code made."""
    needs = plan.needs["recorded"]
    found = {}
    for n in nodes:
        with suppress(MissingRun):
            both = [samples(plan, needs[key]) for key in ((task, ASGD, n), (task, n)) if key in needs]
            medians = [each.median() for each in both]
            if len(medians) == 2 and None not in medians:
                found[n] = medians[0] / medians[1]
    return found


def samples(plan: Plan, need: Need) -> Sample:
    """Return the number of samples to the target accuracy of each training that ``need`` names. Raises MissingRun."""
    return to_target([plan.load_run(spec) for spec in need.specs(plan.conditions, plan.rates.rate)], "samples")
