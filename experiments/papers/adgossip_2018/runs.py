"""Trainings that the figures of adaptive gossip share, numbers of their runs, and how these are shown and compared."""

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

CONSTANT, AUTOMATIC, EQUAL_TRAFFIC = "threshold set by hand", "threshold that keeps a rate", "period 12"
MOVED = 'algorithm.threshold="auto"'
ADAPTIVE = {CONSTANT: ("adgossip/adaptive",), AUTOMATIC: ("adgossip/adaptive", MOVED)}
PERIODIC = {"period 1": ("adgossip/gossip_1",), "period 10": ("adgossip/gossip_10",)}
"""The baselines: the period of the paper's is not known."""
GOSSIP = ADAPTIVE | PERIODIC | {EQUAL_TRAFFIC: ("adgossip/gossip_10", "algorithm.period=12")}
"""Configurations, and what is replaced of them, by name."""
NO_COMMUNICATION = "adgossip/alone"
GREY = (EQUAL_TRAFFIC, NEVER, ALONE)
SENT, SECONDS = "sent until the target [MB]", "seconds to the target"
RATE, DISTANCE = "exchanges that a rank begins per step", "consensus distance"
FEWER_BYTES = "% fewer bytes"


def setting(conditions: Conditions, config: str, *overrides: str) -> Setting:
    """Return a training on slow links, on the ranks that learning rates are tuned for."""
    return Setting(config, conditions.scale.tuning_ranks, SIMULATED, SLOW_LINKS, overrides)


def until_target(conditions: Conditions, config: str, *overrides: str) -> Trainings:
    """Return the need of such trainings, which may end at the target accuracy."""
    return Trainings(setting(conditions, config, *overrides, *STOPS_AT_TARGET))


def whole(conditions: Conditions, config: str, *overrides: str) -> Trainings:
    """Return the need of such trainings that are judged at their end: every rank's own model is tested there, too."""
    return Trainings(setting(conditions, config, *overrides, "train.snapshots=1", "train.evaluate_replicas=true"))


def paper_number(claim: str) -> float:
    """Return the number, in per cent, that the paper claims."""
    return read_claims([papers.folder("adgossip")])[claim]["low"]


# ---- numbers of runs


def each(measure: Callable[[Run], float | None], found: Mapping[str, list[Run]]) -> dict[str, Sample]:
    """Return a number of each run, by the names of the needs."""
    return {name: sample.of(runs, measure) for name, runs in found.items()}


def accuracy_at_the_end(run: Run, column: str = "test_accuracy") -> float:
    """Return the last test accuracy, in per cent. Runs are equally long, but for a step or two of ranks that do not
    wait."""
    return 100 * last_value(run, column)


def exchanges(run: Run) -> float:
    """Return the exchanges of the run, each of which sends two models."""
    return bytes_sent(run) / (2 * run.attributes["model_bytes"])


def columns_until_target(found: Mapping[str, list[Run]]) -> dict[str, dict[str, Sample]]:
    """Return, of trainings until the target accuracy, MB that all ranks send, seconds, exchanges and how far models
    differ. The MB are samples times bytes per sample."""
    megabytes = each(lambda run: bytes_sent(run) / samples(run) / 1e6, found)
    return {
        SENT: {name: product(to_target(runs, "samples"), megabytes[name]) for name, runs in found.items()},
        SECONDS: {name: to_target(runs, "time") for name, runs in found.items()},
        RATE: each(lambda run: exchanges(run) / run.ranks["steps"].sum(), found),
        DISTANCE: each(final_consensus, found),
    }


# ---- what is shown


def show_columns(
    section: Section, caption: str, columns: dict[str, dict[str, Sample]], times: bool = True, unit: str = ""
):
    """Draw bars and write a table of samples by name; columns: by what they are. times: whether there are some. unit:
    of all columns, if it is not said by what they are."""
    panels = [
        Panel(what, "", unit, bars={name: {"": value} for name, value in values.items()}, controls=GREY)
        for what, values in columns.items()
    ]
    section.figure(caption, panels, times)
    show_table(section, caption, "exchanges", columns)


def show_table(section: Section, caption: str, first: str, columns: dict[str, dict[str, Sample]]):
    """Write a row for each name in any of the columns; first: what the names are."""
    names = dict.fromkeys(name for values in columns.values() for name in values)
    rows = [[name, *(values[name].text() if name in values else "" for values in columns.values())] for name in names]
    section.table(caption, [first, *columns], rows)


def adaptive_against_others(
    values: dict[str, Sample], condition: str, number: float | None = None, **options
) -> list[Case]:
    """Return whether each adaptive form is less than each of the others; the baselines are evidence, others controls.

    values: by name. condition: where, to which the form is added. number: the paper's, which controls are not held
    against. options: of ``decide.less``.
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
