"""Assigns each target (table or figure) to one version of the code, which has made all runs of the target."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan
from grsgd.runs.run_file import Run

DIRTY = "-dirty"
"""End of the name of a commit if the code had uncommitted changes, so that this code cannot be obtained again."""


def share(plans: Sequence[Plan]):
    """Keep each target (table or figure) in only one of the plans, which are for several versions of the code.

    A target remains in the first plan of which all runs for the target exist. If no plan has all runs of a target, the
    target remains in ``plans[0]``, for which missing runs are made.
    """
    first, *others = plans
    for target in list(first.needs):
        having = next((plan for plan in plans if plan.is_complete(target)), first)
        for plan in plans:
            if plan is not having:
                del plan.needs[target]


def check_committed(runs: Mapping[Path, Run], recorded: Collection[str]):
    """Raise Unfinished if uncommitted code made a run, unless the run file was recorded before."""
    commits = Counter(
        str(run.attributes.get("commit") or "no commit") for file, run in runs.items() if file.name not in recorded
    )
    if found := {name: count for name, count in sorted(commits.items()) if name.endswith((DIRTY, "no commit"))}:
        told = ", ".join(f"{count} of {name}" for name, count in found.items())
        raise Unfinished(
            f"--record: some runs were made by code that was not committed ({told}): commit the code, and make the "
            "runs again with --fresh"
        )
