"""The comparison of the seconds in which each strategy of a parameter server reaches a fixed accuracy."""

from experiments.papers.adsp_2024 import compared, factors
from experiments.papers.adsp_2024.compared import CONFIGS, MAX_SAVING, MIN_SAVING, OTHERS, OURS, RANDOM, UP_TO
from experiments.papers.adsp_2024.speed import lasting_times
from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Trainings, to_target
from experiments.runner.outcome import CONTROL, EVIDENCE, Case
from experiments.runner.run_spec import MEASURED, SIMULATED
from experiments.runner.sample import Sample
from experiments.runner.setting import Setting
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from experiments.tables.targets import Found

CONTROLS = {"one worker alone": 1, "no communication": None}
"""Number of workers of each control; None stands for as many workers as in the compared runs."""
Times = dict[tuple[str, str, str], Sample]
"""Samples (values by seed) of times, by delays, source of times, and name of the strategy or control."""
REASON = (
    "If all workers have similar data, late gradients cost little accuracy, and ASP gains because it never waits. With "
    "one slow worker, the other workers slow down to its pace once they lead by the greatest allowed number of steps, "
    "as with BSP. Equal workers leave nothing to adapt to."
)


def needs(conditions: Conditions) -> dict[tuple[str, str, str], Trainings]:
    wanted = [(delays, SIMULATED, name) for delays in compared.deciding(conditions) for name in CONFIGS]
    wanted += [(delays, MEASURED, name) for delays, name in compared.measured(conditions)]
    strategies = {
        (delays.name, source, name): compared.training(conditions, name, delays, source)
        for delays, source, name in wanted
    }
    everybody = compared.workers(conditions)
    return strategies | {
        (RANDOM.name, SIMULATED, name): Trainings(
            Setting("adsp/alone", n or everybody, scenario=RANDOM.scenario(conditions, n or everybody)),
            compared.seeds(conditions, SIMULATED, deciding=False),
        )
        for name, n in CONTROLS.items()
    }


def show(found: Found, section: Section) -> None:
    conditions = found.conditions
    lasting: Times = {key: lasting_times(runs) for key, runs in found.items()}
    whole: Times = {key: to_target(runs, "time") for key, runs in found.items()}
    sources = list(dict.fromkeys(source for _, source, _ in found))
    section.figure(
        "Time to the target accuracy at the speed of the second half of the training.",
        [
            Panel(
                compared.where(conditions, source),
                "delays",
                "time to accuracy [s]",
                bars={name: times for name in (*CONFIGS, *CONTROLS) if (times := of(lasting, source, name))},
                controls=tuple(CONTROLS),
            )
            for source in sources
        ],
    )
    for caption, times in (("at the speed of the second half of the training", lasting), ("from the start on", whole)):
        section.table(
            f"Seconds to the target accuracy, {caption}.",
            ["delays", "time", *CONFIGS, *CONTROLS],
            [
                [delays, compared.where(conditions, source), *cells(times, delays, source)]
                for delays, source in dict.fromkeys(key[:2] for key in times)
            ],
        )
    section.finding(
        "adsp-time",
        "time to the target accuracy, computed as samples to the target times seconds per sample in the second half of "
        f"the training; simulated with n = {compared.workers(conditions)}, measured with "
        f"n = {compared.workers(conditions, MEASURED)}. {UP_TO}",
        compared.against_range([case(lasting, *key) for key in lasting if key[-1] != OURS], MIN_SAVING, MAX_SAVING),
        REASON,
    )
    factors.show(found, section, SIMULATED)
    section.note(compared.DELAYS_NOTE)
    section.note(
        "Controls, with random delays: one worker that trains by itself, and workers that never communicate. For the "
        "latter, the average of all models is tested, and the time of averaging is not counted."
    )


def of(times: Times, source: str, name: str) -> dict[str, Sample]:
    """Return the times of one strategy with one source of times (simulated or measured), by delays."""
    return {key[0]: sample for key, sample in times.items() if key[1:] == (source, name)}


def cells(times: Times, delays: str, source: str) -> list[str]:
    keys = ((delays, source, name) for name in (*CONFIGS, *CONTROLS))
    return [times[key].text() if key in times else "" for key in keys]


def case(times: Times, delays: str, source: str, other: str) -> Case:
    """Return the comparison of adsp's time with the time of the strategy or control ``other``."""
    ours, theirs = times[delays, source, OURS], times[delays, source, other]
    is_strategy = other in OTHERS
    kind = EVIDENCE if is_strategy else CONTROL
    return decide.less(ours, theirs, delays, other, source=source, kind=kind, pairs=is_strategy)
