"""The versions of the code that made the runs of a target: all runs of a target are from one version."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from experiments.runner.parallel import Unfinished
from experiments.runner.plan import Plan
from grsgd.runs.run_file import Run

DIRTY = "-dirty"
"""End of the name of a commit with uncommitted changes, whose code cannot be obtained again."""


def share(plans: Sequence[Plan]):
    """Leave each target in one of the plans; each plan has the runs of one version of the code.

    The target stays in the first plan that has all of its runs. If no plan has all of them, it stays in ``plans[0]``,
    which makes missing runs.
    """
    first, *others = plans
    for target in list(first.needs):
        having = next((plan for plan in plans if plan.is_complete(target)), first)
        for plan in plans:
            if plan is not having:
                del plan.needs[target]


def check_committed(runs: Mapping[Path, Run], recorded: Collection[str]):
    """Raise Unfinished if a run was made by code that was not committed, unless its file was recorded before."""
    commits = Counter(
        str(run.attributes.get("commit") or "no commit") for file, run in runs.items() if file.name not in recorded
    )
    if found := {name: count for name, count in sorted(commits.items()) if name.endswith((DIRTY, "no commit"))}:
        told = ", ".join(f"{count} of {name}" for name, count in found.items())
        raise Unfinished(
            f"--record: some runs were made by code that was not committed ({told}): commit the code, and make the "
            "runs again with --fresh"
        )
