"""Makes the outcome of a target (table or figure) from its runs: contents, sources of numbers, and caveats."""

import time
from pathlib import Path

from experiments.runner.hosts import describe_machine
from experiments.runner.outcome import Outcome, Table
from experiments.runner.plan import Plan
from experiments.runner.run_spec import MEASURED, RunSpec
from experiments.tables.nearby_rates import with_nearby_rates
from experiments.tables.numbers import part_of_a_step
from experiments.tables.section import Section
from experiments.tables.targets import Found, Target
from grsgd.runs import measures
from grsgd.runs.run_file import Run
from grsgd.training.description import commit

MIN_STEP_CPU_SECONDS = 0.02
"""Least processor seconds of a step for which a testbed limits a host's processor evenly (docs/how-to/testbed.md)."""
QUANTITIES = {
    "times": measures.seconds_per_step,
    "waiting": lambda run: float(part_of_a_step(run, "wait").mean()),
}
"""Functions that compute the quantities which figures show from a run.

Simulated and measured runs are also compared by these quantities.
"""


def outcome(target: Target, plan: Plan, folder: Path, command: str) -> Outcome:
    """Make the outcome of a target from its runs, and write its figures into ``folder``. Raises MissingRun."""
    section = Section(target.name, folder)
    used = plan.load_runs(target.name)
    target.show(Found(plan.conditions, plan.results(target.name)), section)
    tuned = plan.settings(target.name)
    commits = sorted({str(run.attributes.get("commit")) for run in used.values()})
    found = Outcome(
        target=target.name,
        title=target.title,
        paper=target.paper,
        scale=plan.conditions.scale.name,
        command=command,
        tables=section.tables,
        figures=section.figures,
        findings=section.findings,
        notes=section.notes + caveats(plan, used),
        provenance={
            "machine": describe_machine(),
            "code": str(commit()),
            "code of the runs": ", ".join(commits) or "none",
            "made": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        | made_on(plan, used),
        runs=[row(plan, spec, run) for spec, run in used.items()],
        learning_rates=Table(*plan.rates.table(tuned)) if tuned else None,
        break_evens=section.break_evens,
    )
    return with_nearby_rates(found, plan)


def row(plan: Plan, spec: RunSpec, run: Run) -> dict[str, str]:
    """Return a run as a row of the table of runs: the command that makes it, its file, and its numbers."""
    numbers = {
        "algorithm": run.attributes["algorithm"],
        "ranks": run.attributes["ranks"],
        "seed": run.attributes["seed"],
        "seconds to target": measures.crossing(run, "time"),
        "samples to target": measures.crossing(run, "samples"),
        "last accuracy": measures.last_value(run, "test_accuracy"),
        "seconds per step": measures.seconds_per_step(run),
        "bytes sent": measures.bytes_sent(run),
    }
    return {
        "command": plan.store.command(spec),
        "file": str(plan.store.path(spec)),
        "commit": str(run.attributes.get("commit")),
        "source": spec.source,
    } | {name: "" if value is None or value != value else str(value) for name, value in numbers.items()}


def made_on(plan: Plan, used: dict[RunSpec, Run]) -> dict[str, str]:
    """Return texts on the machines of measured runs, and on the machines and times of calibrations."""
    places = {
        "clock": sorted({plan.store.hosts.describe(spec) for spec in used if spec.source == MEASURED}),
        "calibrated": plan.store.networks.places(used),
    }
    return {key: "; ".join(found) for key, found in places.items() if found}


def caveats(plan: Plan, used: dict[RunSpec, Run]) -> list[str]:
    """Return notes on measured runs whose links or processors could not be emulated, or not evenly."""
    on, runs = plan.store.hosts, [run for spec, run in used.items() if spec.source == MEASURED]
    if not runs:
        return []
    if not plan.store.emulated:
        why = f" ({on.why})" if on.why else ""
        return [f"Measured on {on.place}{why}. Slow links and slow hosts are only simulated."]
    computing = [on.cpu * float(part_of_a_step(run, "compute").min()) for run in runs]
    if min(computing) >= MIN_STEP_CPU_SECONDS:
        return []
    return [
        f"Steps that were measured compute for {1e3 * min(computing):.0f} to {1e3 * max(computing):.0f} ms of the "
        f"processor's time. The testbed slows computations evenly from {1e3 * MIN_STEP_CPU_SECONDS:.0f} ms on: in "
        "shorter ones a rank that has waited begins at full speed, which favours algorithms that wait, as all-reduces "
        "do, in measured times."
    ]
