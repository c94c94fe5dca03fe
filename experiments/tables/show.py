"""The outcome of a target: what it shows, with the runs, sources and caveats of its numbers."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from experiments.tables import codes, sample
from experiments.tables.hosts import machine
from experiments.tables.numbers import part_of_a_step
from experiments.tables.outcome import Case, Figure, Outcome, Table
from experiments.tables.plan import Plan
from experiments.tables.run_spec import MEASURED, SIMULATED, TIMING_ONLY, RunSpec
from experiments.tables.section import Section
from experiments.tables.setting import Setting
from experiments.tables.targets import Found, Target
from grsgd.runs import measures
from grsgd.runs.run_file import Run
from grsgd.training.description import commit

MIN_STEP_CPU_SECONDS = 0.02
"""Seconds of the processor's time from which on a testbed slows computations evenly (docs/testbed.md)."""
QUANTITIES = {
    "times": measures.seconds_per_step,
    "waiting": lambda run: float(part_of_a_step(run, "wait").mean()),
}
"""Numbers of a run that figures show, and that simulated runs are held against the clock with."""
MOST_ERRORS = 8
"""Of the simulator, that are told one by one."""


def outcome(target: Target, plan: Plan, folder: Path, command: str) -> Outcome:
    """Return what a target shows of its runs; writes its figures into the folder. Raises MissingRun."""
    section = Section(target.name, folder)
    used = plan.used(target.name)
    target.show(Found(plan.conditions, plan.results(target.name)), section)
    tuned = plan.settings(target.name)
    commits = sorted({str(run.attributes.get("commit")) for run in used.values()})
    return Outcome(
        target=target.name,
        title=target.title,
        paper=target.paper,
        scale=plan.conditions.scale.name,
        command=command,
        tables=section.tables,
        figures=section.figures,
        findings=section.findings,
        notes=section.notes + codes.note(plan, commits) + caveats(plan, used),
        provenance={
            "machine": machine(),
            "code": str(commit()),
            "code of the runs": ", ".join(commits) or "none",
            "made": time.strftime("%Y-%m-%d %H:%M %Z"),
        }
        | made_on(plan, used),
        runs=[row(plan, spec, run) for spec, run in used.items()],
        learning_rates=Table(*plan.rates.table(tuned)) if tuned else None,
        break_evens=section.break_evens,
    )


def row(plan: Plan, spec: RunSpec, run: Run) -> dict[str, str]:
    """Return what is told of a run: where it lies, how it was made, and its numbers."""
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
    """Return what runs by the clock were made on, and what simulated times were calibrated on."""
    places = {
        "clock": sorted({plan.store.hosts.describe(spec) for spec in used if spec.source == MEASURED}),
        "calibrated": plan.store.networks.places(used),
    }
    return {key: "; ".join(found) for key, found in places.items() if found}


def caveats(plan: Plan, used: dict[RunSpec, Run]) -> list[str]:
    """Return what is to be known of runs by the clock: what could not be emulated, or how evenly."""
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


# ---- the simulator's error


def with_simulator_errors(outcomes: dict[str, Outcome], plans: Mapping[str, Plan]) -> list[Outcome]:
    """Return the outcomes with the simulator's error in their captions and beside their simulated cases: that of the
    target's own trainings, or else of all targets of the paper. plans: by target."""
    own = {what: {name: simulator_errors(plans[name], name, what) for name in outcomes} for what in QUANTITIES}
    shown = []

    def note_of(name: str, what: str) -> str:
        alike = [other for other in outcomes if outcomes[other].paper == outcomes[name].paper]
        of_paper = [error for other in alike for error in own[what][other]]
        return error_note(own[what][name] or of_paper, "the same" if own[what][name] else "other", what)

    for name, found in outcomes.items():
        note = note_of(name, "times")
        figures = [with_error(figure, note_of(name, figure.shows), found.runs) for figure in found.figures]
        findings = [
            replace(finding, cases=[case_with_error(case, note) for case in finding.cases])
            for finding in found.findings
        ]
        shown.append(replace(found, figures=figures, findings=findings, simulator_errors=own["times"][name]))
    return shown


def error_note(errors: list[tuple[str, float]], which: str, what: str = "times") -> str:
    """Return how far simulated times, or what else, are from measured ones, in words: for each algorithm, or of many,
    in the middle and at both ends."""
    if not errors:
        return "not held against the clock here"
    ordered = sorted(errors, key=lambda error: error[1])
    words = [f"{name} {error:+.0%}" for name, error in ordered]
    if len(words) > MOST_ERRORS:
        middle = median(error for _, error in errors)
        words = [f"median {middle:+.0%}, from {words[0]} to {words[-1]}, of {len(words)}"]
    return f"against measured {what} of {which} trainings: {', '.join(words)}"


def with_error(figure: Figure, note: str, runs: list[dict]) -> Figure:
    """Return a figure with the simulator's error in its caption, if it shows simulated times or waiting."""
    if not figure.times or not any(run["source"] in (SIMULATED, TIMING_ONLY) for run in runs):
        return figure
    return replace(figure, caption=f"{figure.caption} Simulated {figure.shows}, {note}.")


def case_with_error(case: Case, note: str) -> Case:
    """Return a case with the simulator's error, if it rests on simulated times."""
    is_time = "time" in case.unit
    return replace(case, simulator_error=note) if case.source in (SIMULATED, TIMING_ONLY) and is_time else case


def simulator_errors(plan: Plan, target: str, what: str = "times") -> list[tuple[str, float]]:
    """Return how far simulated times of a target are from measured ones of the same trainings, as shares of those, with
    the names of the configurations. A host that is really slow is simulated as a rank that computes more slowly.

    what: of `QUANTITIES`. Samples are of times; where nothing was measured, as of waiting that there is none, there is
    no share.
    """
    measured, simulated = {}, {}
    results = plan.results(target)
    for key, need in plan.needs[target].items():
        result = results[key]
        if isinstance(result, sample.Sample) and what != "times":
            continue
        if not isinstance(result, sample.Sample):
            result = sample.of(result, QUANTITIES[what])
        if (middle := result.median()) is not None:
            alike = replace(need, setting=need.setting.but(source=SIMULATED))
            specs = alike.specs(plan.conditions, plan.rates.rate)
            first = tuple(spec for spec in specs if "seed=0" in spec.overrides)  # of steps and trajectories one each
            if need.setting.source == MEASURED:
                measured[type(need), first] = middle, need.setting
            else:
                simulated[type(need), first] = middle
    return [
        (name_of(setting), simulated[run] / seconds - 1)
        for run, (seconds, setting) in measured.items()
        if run in simulated and seconds
    ]


def name_of(setting: Setting) -> str:
    """Return the name of what is trained: that of its file."""
    return setting.config.rpartition("/")[2].replace("_", " ")
