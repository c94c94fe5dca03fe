"""Figures on the claims of adaptive gossip (Ho, Wu, Liu 2018).

The figures compare exchanges that follow a large change of the model with exchanges after a fixed period.
"""

from functools import partial

from experiments.papers.adgossip_2018 import adapting, together  # noqa: F401 these imports register targets
from experiments.papers.adgossip_2018.runs import (
    ADAPTIVE,
    AUTOMATIC,
    CONSTANT,
    DISTANCE,
    EQUAL_TRAFFIC,
    EVERY_STEP,
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
    EVERY_STEP: ("adgossip/easgd", "algorithm.period=1"),
    "exchanges every 10 steps": ("adgossip/easgd",),
    EQUAL_TRAFFIC: ("adgossip/easgd", "algorithm.period=12"),
}
"""Methods of elastic averaging, all with the learning rate that was tuned for a period of 10 steps."""
SLOW = "slow links"
PLACES = {
    SLOW: ({}, tuple(GOSSIP)),
    "slow links, measured": ({"source": MEASURED}, (CONSTANT, EVERY_STEP)),
    "fast links": ({"scenario": EQUAL, "link": Link("1gbit", nominal=True)}, (CONSTANT, EVERY_STEP)),
}
"""Conditions of the comparison of times, by name.

A condition has changes of the setting with slow simulated links, and the names of the compared methods.
"""
MODELS = {"averaged model": "test_accuracy", "worst of the ranks' models": "test_accuracy_min"}
BYTES = (
    "bytes of payload that all ranks send until the target accuracy, computed as samples to the target times bytes per "
    "sample; simulated, slow links"
)
CHOSEN_RATE_NOTE = (
    "The rate of exchanges was chosen here: a rank begins about 0.08 exchanges per step. The threshold is either a "
    "constant with about this rate, or moves towards this rate in training; short trainings stay below the rate. So "
    "bytes per step are some 92 % fewer than with exchanges every step by construction, and are not counted as "
    "evidence. Steps, bytes and time to the target accuracy were not chosen."
)


# ---- figures on traffic


def traffic_needs(conditions):
    return {name: until_target(conditions, *config) for name, config in GOSSIP.items()}


def show_traffic(found, section):
    columns = columns_until_target(found)
    caption = "Traffic and time until the target accuracy. With fewer exchanges, models differ more from their average."
    show_columns(section, caption, columns)
    options, number = {"unit": FEWER_BYTES, "source": ""}, paper_number("adgossip-traffic")
    rates, every_step = columns[RATE], columns[RATE][EVERY_STEP]
    section.finding(
        "adgossip-traffic",
        BYTES,
        adaptive_against_others(columns[SENT], "bytes to the target", number=number, **options)
        + [
            decide.less(rates[form], every_step, f"bytes per step, {form}", EVERY_STEP, kind=BY_CONSTRUCTION, **options)
            for form in ADAPTIVE
        ],
        "A rate of 0.08 exchanges per step is at most a fifth below the rate of a fixed period of 10 steps. Fewer "
        "exchanges may need more steps to the target accuracy.",
    )
    section.note(CHOSEN_RATE_NOTE)


register("adgossip-traffic", "Bytes until a fixed accuracy, against fixed periods", traffic_needs, show_traffic)


# ---- figures on time


def time_needs(conditions):
    never = setting(conditions, NO_COMMUNICATION)
    return {
        (place, name): TimeToTarget(setting(conditions, *GOSSIP[name]).but(**changes), seeds(conditions, place))
        for place, (changes, names) in PLACES.items()
        if conditions.can_be(source_of(place), SLOW_LINKS)
        for name in names
    } | {(SLOW, NEVER): TimeToTarget(never), (SLOW, ALONE): TimeToTarget(never.but(ranks=1))}


def seeds(conditions, place):
    """Return the number of seeds for a condition: at most three for measured runs, which take minutes each.

    For simulated runs, None is returned, so that the number of seeds follows from the experiment's scale (size).
    """
    return min(CLOCK_SEEDS, conditions.scale.clock_seeds) if source_of(place) == MEASURED else None


def source_of(place):
    return PLACES[place][0].get("source", SIMULATED)


def show_time(found, section):
    times = {place: {name: value for (where, name), value in found.items() if where == place} for place, _ in found}
    show_columns(section, "Seconds to the target accuracy.", times, unit="seconds")
    number = paper_number("adgossip-time")
    section.finding(
        "adgossip-time",
        "time to the target accuracy; fast links have a rate of 1 Gbit/s",
        [
            case
            for place, values in times.items()
            for case in adaptive_against_others(values, place, number=number, source=source_of(place))
        ],
        "Only the time of exchanges can be saved; it depends on the links and on the period of the baseline. Fewer "
        "exchanges may also need more steps to the same accuracy.",
    )


register("adgossip-time", "Time to a fixed accuracy, against fixed periods", time_needs, show_time)


# ---- figures on accuracy


def accuracy_needs(conditions):
    configs = GOSSIP | {NEVER: (NO_COMMUNICATION,)}
    return {name: whole(conditions, *configs[name]) for name in (*ADAPTIVE, EVERY_STEP, EQUAL_TRAFFIC, NEVER)}


def show_accuracy(found, section):
    accuracies = {what: each(partial(accuracy_at_the_end, column=column), found) for what, column in MODELS.items()}
    show_columns(
        section,
        "After the same number of samples: accuracy on the whole test set [%], and distance of the models.",
        accuracies | {DISTANCE: each(final_consensus, found)},
        times=False,
    )
    pairs = [(form, name, kind(name)) for form in ADAPTIVE for name in (EVERY_STEP, EQUAL_TRAFFIC)]
    section.finding(
        "adgossip-accuracy",
        "test accuracy after the same number of samples; the claim holds if at most one point of accuracy is lost; "
        "simulated, slow links",
        [
            decide.no_worse(values[ours], values[name], f"{what}, {ours}", name, source="", kind=counts)
            for what, values in accuracies.items()
            for ours, name, counts in [*pairs, (NEVER, EVERY_STEP, CONTROL)]
        ],
        "With rare exchanges, a rank's model lacks the recent progress of the other ranks.",
    )


register("adgossip-accuracy", "Accuracy, compared with fixed periods", accuracy_needs, show_accuracy)


# ---- figures on elastic averaging


def elastic_needs(conditions):
    return {name: until_target(conditions, *config) for name, config in ELASTIC.items()}


def show_elastic(found, section):
    columns = columns_until_target(found)
    show_columns(section, "Elastic averaging until the target accuracy.", columns)
    section.finding(
        "adgossip-easgd",
        f"{BYTES}; the tested model is the centre variable of elastic averaging",
        adaptive_against_others(columns[SENT], "elastic averaging", unit=FEWER_BYTES, source=""),
        "Only exchanges move the centre variable. Fewer exchanges therefore need more steps to the target accuracy.",
    )
    section.note(CHOSEN_RATE_NOTE)


register("adgossip-easgd", "The same trigger on elastic averaging", elastic_needs, show_elastic)
