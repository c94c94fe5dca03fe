"""Figures on the claims of adaptive gossip (Ho, Wu, Liu 2018).

They compare exchanges that follow changes of the model with exchanges after a fixed period.
"""

from functools import partial

from experiments.papers.adgossip_2018 import adapting, together  # noqa: F401 register their targets
from experiments.papers.adgossip_2018.runs import (
    ADAPTIVE,
    AUTOMATIC,
    CONSTANT,
    DISTANCE,
    EQUAL_TRAFFIC,
    FEWER_BYTES,
    GOSSIP,
    NO_COMMUNICATION,
    RATE,
    SENT,
    accuracy_at_the_end,
    adaptive_against_others,
    columns_until_target,
    each,
    kind,
    paper_number,
    setting,
    show_columns,
    until_target,
    whole,
)
from experiments.runner import decide
from experiments.runner.needs import TimeToTarget
from experiments.runner.outcome import BY_CONSTRUCTION, CONTROL
from experiments.runner.run_spec import MEASURED, SIMULATED, Link
from experiments.runner.setting import EQUAL, SLOW_LINKS
from experiments.tables.compare import ALONE, CLOCK_SEEDS, NEVER
from experiments.tables.targets import register
from grsgd.runs.measures import final_consensus

ELASTIC = {
    AUTOMATIC: ("adgossip/easgd", "algorithm.adaptive=true"),
    "period 1": ("adgossip/easgd", "algorithm.period=1"),
    "period 10": ("adgossip/easgd",),
    EQUAL_TRAFFIC: ("adgossip/easgd", "algorithm.period=12"),
}
"""Methods of elastic averaging, all with the learning rate tuned for a period of 10."""
SLOW = "slow links"
PLACES = {
    SLOW: ({}, tuple(GOSSIP)),
    "slow links, by the clock": ({"source": MEASURED}, (CONSTANT, "period 1")),
    "fast links": ({"scenario": EQUAL, "link": Link("1gbit", nominal=True)}, (CONSTANT, "period 1")),
}
"""Conditions under which times are compared: differences from slow simulated links, and the compared methods."""
MODELS = {"averaged model": "test_accuracy", "worst of the ranks' models": "test_accuracy_min"}
BYTES = "payload of all ranks until the target accuracy: samples times bytes per sample; simulated, slow links"
CHOSEN_RATE_NOTE = (
    "How often exchanges are due was chosen here: the threshold is a constant with which a rank begins about 0.08 "
    "exchanges per step, or is moved towards that rate, below which short trainings stay. So bytes per step are true "
    "by construction, some 92 % fewer than with a period of 1, and not counted as evidence. Steps to the target "
    "accuracy, and so bytes and time to it, were not chosen."
)


# ---- traffic


def traffic_needs(conditions):
    return {name: until_target(conditions, *config) for name, config in GOSSIP.items()}


def show_traffic(found, section):
    columns = columns_until_target(found)
    show_columns(
        section, "Until the target accuracy; what is saved is paid for in the distance of the models.", columns
    )
    options, number = {"unit": FEWER_BYTES, "source": ""}, paper_number("adgossip-traffic")
    rates, every_step = columns[RATE], columns[RATE]["period 1"]
    section.finding(
        "adgossip-traffic",
        BYTES,
        adaptive_against_others(columns[SENT], "bytes to the target", number=number, **options)
        + [
            decide.less(rates[form], every_step, f"per step, {form}", "period 1", kind=BY_CONSTRUCTION, **options)
            for form in ADAPTIVE
        ],
        "A rate of 0.08 is no more than a fifth below that of a period of 10, and fewer exchanges may need more steps.",
    )
    section.note(CHOSEN_RATE_NOTE)


register("adgossip-traffic", "Bytes until a fixed accuracy, against fixed periods", traffic_needs, show_traffic)


# ---- time


def time_needs(conditions):
    never = setting(conditions, NO_COMMUNICATION)
    return {
        (place, name): TimeToTarget(setting(conditions, *GOSSIP[name]).but(**changes), seeds(conditions, place))
        for place, (changes, names) in PLACES.items()
        if conditions.can_be(source_of(place), SLOW_LINKS)
        for name in names
    } | {(SLOW, NEVER): TimeToTarget(never), (SLOW, ALONE): TimeToTarget(never.but(ranks=1))}


def seeds(conditions, place):
    """Return three for measured runs, which take minutes each; None for the number of the scale."""
    return min(CLOCK_SEEDS, conditions.scale.clock_seeds) if source_of(place) == MEASURED else None


def source_of(place):
    return PLACES[place][0].get("source", SIMULATED)


def show_time(found, section):
    times = {place: {name: value for (where, name), value in found.items() if where == place} for place, _ in found}
    show_columns(section, "Seconds to the target accuracy.", times, unit="seconds")
    number = paper_number("adgossip-time")
    section.finding(
        "adgossip-time",
        "time to the target accuracy; fast links: 1 Gbit/s",
        [
            case
            for place, values in times.items()
            for case in adaptive_against_others(values, place, number=number, source=source_of(place))
        ],
        "Time falls only as far as exchanges took time: the links and the period of the baseline decide how much can "
        "be saved. Fewer exchanges may also need more steps to the same accuracy.",
    )


register("adgossip-time", "Time to a fixed accuracy, against fixed periods", time_needs, show_time)


# ---- accuracy


def accuracy_needs(conditions):
    configs = GOSSIP | {NEVER: (NO_COMMUNICATION,)}
    return {name: whole(conditions, *configs[name]) for name in (*ADAPTIVE, "period 1", EQUAL_TRAFFIC, NEVER)}


def show_accuracy(found, section):
    accuracies = {what: each(partial(accuracy_at_the_end, column=column), found) for what, column in MODELS.items()}
    show_columns(
        section,
        "After equally many samples: accuracy on the whole test set [%], and how far the models differ.",
        accuracies | {DISTANCE: each(final_consensus, found)},
        times=False,
    )
    pairs = [(form, name, kind(name)) for form in ADAPTIVE for name in ("period 1", EQUAL_TRAFFIC)]
    section.finding(
        "adgossip-accuracy",
        "test accuracy after equally many samples; supported if at most one point is lost; simulated, slow links",
        [
            decide.no_worse(values[ours], values[name], f"{what}, {ours}", name, source="", kind=counts)
            for what, values in accuracies.items()
            for ours, name, counts in [*pairs, (NEVER, "period 1", CONTROL)]
        ],
        "With rare exchanges a rank's model knows little of what the others have learnt meanwhile.",
    )


register("adgossip-accuracy", "Accuracy, beside that of fixed periods", accuracy_needs, show_accuracy)


# ---- elastic averaging


def elastic_needs(conditions):
    return {name: until_target(conditions, *config) for name, config in ELASTIC.items()}


def show_elastic(found, section):
    columns = columns_until_target(found)
    show_columns(section, "Elastic averaging until the target accuracy.", columns)
    section.finding(
        "adgossip-easgd",
        f"{BYTES}; the model that is tested is the centre",
        adaptive_against_others(columns[SENT], "elastic averaging", unit=FEWER_BYTES, source=""),
        "The centre moves with exchanges alone: with few of them it takes more steps to the accuracy.",
    )
    section.note(CHOSEN_RATE_NOTE)


register("adgossip-easgd", "The same trigger on elastic averaging", elastic_needs, show_elastic)
