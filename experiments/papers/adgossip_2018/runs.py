"""Trainings that several figures of adaptive gossip use, with functions that measure, show and compare the runs."""

from collections.abc import Callable, Mapping

from experiments import papers
from experiments.runner import decide, sample
from experiments.runner.conditions import Conditions
from experiments.runner.needs import STOPS_AT_TARGET, Trainings, product, to_target
from experiments.runner.outcome import CONTROL, EVIDENCE, Case
from experiments.runner.run_spec import SIMULATED
from experiments.runner.sample import Sample
from experiments.runner.setting import SLOW_LINKS, Setting
from experiments.tables.claims import read_claims
from experiments.tables.compare import ALONE, NEVER
from experiments.tables.draw import Panel
from experiments.tables.section import Section
from grsgd.runs.measures import bytes_sent, final_consensus, last_value, samples
from grsgd.runs.run_file import Run

CONSTANT, AUTOMATIC = "threshold set by hand", "threshold that keeps a rate"
EVERY_STEP, EQUAL_TRAFFIC = "exchanges every step", "exchanges every 12 steps"
MOVED = 'algorithm.threshold="auto"'
ADAPTIVE = {CONSTANT: ("adgossip/adaptive",), AUTOMATIC: ("adgossip/adaptive", MOVED)}
PERIODIC = {EVERY_STEP: ("adgossip/gossip_1",), "exchanges every 10 steps": ("adgossip/gossip_10",)}
"""The baselines, which exchange models after a fixed period; the period of the paper's baseline is unknown."""
GOSSIP = ADAPTIVE | PERIODIC | {EQUAL_TRAFFIC: ("adgossip/gossip_10", "algorithm.period=12")}
"""Configuration of each method with its overrides, by name of the method."""
NO_COMMUNICATION = "adgossip/alone"
GREY = (EQUAL_TRAFFIC, NEVER, ALONE)
SENT, SECONDS = "sent until the target [MB]", "seconds to the target"
RATE, DISTANCE = "exchanges that a rank begins per step", "consensus distance"
FEWER_BYTES = "% fewer bytes"


def setting(conditions: Conditions, config: str, *overrides: str) -> Setting:
    """Return the setting of a run with slow links, on the number of ranks for which learning rates are tuned."""
    return Setting(config, conditions.scale.tuning_ranks, SIMULATED, SLOW_LINKS, overrides)


def until_target(conditions: Conditions, config: str, *overrides: str) -> Trainings:
    """Return the specification of trainings that may end when they reach the target accuracy."""
    return Trainings(setting(conditions, config, *overrides, *STOPS_AT_TARGET))


def whole(conditions: Conditions, config: str, *overrides: str) -> Trainings:
    """Return the specification of trainings whose final accuracy counts.

    The model of every single rank is evaluated in addition to the average.
    """
    return Trainings(setting(conditions, config, *overrides, "train.snapshots=1", "train.evaluate_replicas=true"))


def paper_number(claim: str) -> float:
    """Return the least effect, in per cent, that the paper states for a claim."""
    return read_claims([papers.folder("adgossip")])[claim]["low"]


# ---- functions that compute numbers of runs


def each(measure: Callable[[Run], float | None], found: Mapping[str, list[Run]]) -> dict[str, Sample]:
    """Return the number that ``measure`` computes for each run, as one sample (values by seed) per method."""
    return {name: sample.of(runs, measure) for name, runs in found.items()}


def accuracy_at_the_end(run: Run, column: str = "test_accuracy") -> float:
    """Return the test accuracy at the end of a run, in per cent.

    The compared runs have equally many steps, except for a step or two of ranks that do not wait.
    """
    return 100 * last_value(run, column)


def exchanges(run: Run) -> float:
    """Return the number of exchanges of models in the run; in each exchange, two models are sent."""
    return bytes_sent(run) / (2 * run.attributes["model_bytes"])


def columns_until_target(found: Mapping[str, list[Run]]) -> dict[str, dict[str, Sample]]:
    """Return four numbers of trainings until the target accuracy, by title of the number and by name of the method.

    The numbers are the MB that all ranks send, the seconds, the exchanges per step, and the consensus distance. The MB
    are the number of samples to the target times the bytes that are sent per sample.
    """
    megabytes = each(lambda run: bytes_sent(run) / samples(run) / 1e6, found)
    return {
        SENT: {name: product(to_target(runs, "samples"), megabytes[name]) for name, runs in found.items()},
        SECONDS: {name: to_target(runs, "time") for name, runs in found.items()},
        RATE: each(lambda run: exchanges(run) / run.ranks["steps"].sum(), found),
        DISTANCE: each(final_consensus, found),
    }


    # ---- functions that draw figures and write tables


def show_columns(
    section: Section, caption: str, columns: dict[str, dict[str, Sample]], times: bool = True, unit: str = ""
):
    """Draw the samples (values by seed) as bars by name of the method, and write them as a table.

    columns: by title, the samples of all methods. times: whether some columns are times. unit: unit of all columns; ""
    if the titles state the unit.
    """
    panels = [
        Panel(what, "", unit, bars={name: {"": value} for name, value in values.items()}, controls=GREY)
        for what, values in columns.items()
    ]
    section.figure(caption, panels, times)
    show_table(section, caption, "exchanges", columns)


def show_table(section: Section, caption: str, first: str, columns: dict[str, dict[str, Sample]]):
    """Write a table with a row for each name in any of the columns; ``first`` is the header of the column of names."""
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = [[name, *(values[name].text() if name in values else "" for values in columns.values())] for name in names]
    section.table(caption, [first, *columns], rows)


def adaptive_against_others(
    values: dict[str, Sample], condition: str, number: float | None = None, **options
) -> list[Case]:
    """Return comparisons (cases) that test whether each adaptive method needs less than each other method.

    Comparisons with the paper's baselines are evidence, and all other comparisons are controls. values: samples by
    name of the method. condition: text of the condition, to which the name of the adaptive method is added. number:
    the paper's number, with which only evidence is compared. options: further arguments of ``decide.less``.
    """
    return [
        decide.less(
            values[ours],
            theirs,
            f"{condition}, {ours}",
            name,
            number=number if kind(name) == EVIDENCE else None,
            kind=kind(name),
            pairs=name != ALONE,
            **options,
        )
        for ours in ADAPTIVE
        if ours in values
        for name, theirs in values.items()
        if name not in ADAPTIVE
    ]


def kind(name: str) -> str:
    return EVIDENCE if name in PERIODIC else CONTROL
