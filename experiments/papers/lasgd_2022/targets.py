"""The tables and figures of LASGD (Avidor, Tal-Israel 2022), against synchronous SGD, gossip and a parameter server."""

from experiments.runner import decide
from experiments.runner.needs import Trajectories
from experiments.runner.run_spec import MEASURED, Link
from experiments.runner.setting import EQUAL, SLOW_HOST, SLOW_LINKS, STRAGGLER, Scenario, Setting
from experiments.tables.compare import (
    ALONE,
    NEVER,
    TIMES,
    condition,
    kind_of_pace,
    map_needs,
    places,
    quotient,
    samples,
    settings_at,
    show_values,
    timed_steps,
)
from experiments.tables.final_accuracy import ACCURACIES, FinalAccuracy
from experiments.tables.link_rates import LinkRates
from experiments.tables.numbers import final_accuracy
from experiments.tables.robustness import Robustness
from experiments.tables.targets import register
from experiments.tables.time_to_accuracy import TimeToAccuracy
from grsgd.runs.measures import final_consensus, seconds_per_step

LASGD, RING, ADPSGD, SERVER = "LASGD", "ring all-reduce", "AD-PSGD", "ASGD with a server"
SGP = "stochastic gradient push"
GOSSIP = {
    ADPSGD: "lasgd/adpsgd",
    SGP: "lasgd/sgp",
    "overlapped gradient push": "lasgd/osgp",
    "GoSGD": "lasgd/gosgd",
    "D-PSGD": "lasgd/dpsgd",
}
LATER = {"GRSGD": "lasgd/grsgd"}
"""A gossip algorithm that was published after the LASGD paper, by name, with its configuration."""
CONFIGS = {LASGD: "lasgd/lasgd", RING: "lasgd/ring_allreduce", **GOSSIP, **LATER}
NO_MESSAGES = "lasgd/alone"
SCENARIOS = {
    EQUAL: "With equal ranks and fast links, an all-reduce waits little, and averages of models come later than "
    "averages of gradients.",
    STRAGGLER: "The slow rank delays all averages of LASGD, and gossip does not wait for the slow rank either.",
    SLOW_HOST: "A slow processor also takes longer for its part of every all-reduce.",
    SLOW_LINKS: "On slow links an all-reduce of all models takes long: the average is late, and models differ.",
}

# ---- figures on time and accuracy

TIME = TimeToAccuracy(
    {RING: "lasgd-time"} | dict.fromkeys(GOSSIP, "lasgd-gossip-time"),
    CONFIGS,
    NO_MESSAGES,
    SCENARIOS,
    measured=(SLOW_HOST,),
    by_clock=(LASGD, RING, SGP, "D-PSGD", "GRSGD"),
    at_desk=(LASGD, RING, ADPSGD, SGP, "D-PSGD", "GRSGD", ALONE),
    later=tuple(LATER),
)
ASYNCHRONOUS_GOSSIP = (ADPSGD, "GoSGD")


def show_time(found, section):
    """Write into the section the verdicts on LASGD's time, and on the paper's statements about earlier methods."""
    times = TIME.show(found, section)
    section.finding(
        "lasgd-speed-up",
        f"{TIMES}; equal ranks, compared with one rank that trains by itself, on the small problems of this scale",
        [
            decide.less(some[name], some[ALONE], f"{name}, {condition(place)}", ALONE, source=place.source)
            for place, some in times.items()
            if place.scenario == EQUAL and ALONE in some
            for name in (RING, *GOSSIP)
            if name in some
        ],
        "Small problems gain little: more ranks train with larger batches, and communicate just as often.",
    )
    section.finding(
        "lasgd-asynchronous",
        f"{TIMES}; gossip in which no rank waits for another rank, compared with synchronous SGD",
        [
            decide.less(some[name], some[RING], f"{name}, {condition(place)}", RING, source=place.source)
            for place, some in times.items()
            for name in ASYNCHRONOUS_GOSSIP
            if name in some
        ],
        "Steps without waiting are shorter, but training needs more steps.",
    )


register("lasgd-time-to-acc", "Time to a fixed accuracy: LASGD, synchronous SGD, gossip", TIME.needs, show_time)

LINKS = LinkRates("lasgd-links", {name: CONFIGS[name] for name in (LASGD, RING, SGP, "GRSGD")}, RING, NO_MESSAGES)
register("lasgd-link-rates", "The break-even: cost of communication at which LASGD saves time", LINKS.needs, LINKS.show)

DELTA, OVERWRITE = "merge rule delta (the default)", "merge rule overwrite"
MERGES = {
    DELTA: (),
    OVERWRITE: ('algorithm.merge="overwrite"',),
    "merge rule anchor": ('algorithm.merge="anchor"',),
    "merge rule cocod, 4 steps": ('algorithm.merge="cocod"', "algorithm.Hmin=4"),
}
ROBUST = Robustness("lasgd-options", CONFIGS[LASGD], (RING, CONFIGS[RING]), MERGES, SLOW_LINKS)
register("lasgd-robustness", "The verdict on time with each inferred option", ROBUST.needs, ROBUST.show)

ACCURACY = FinalAccuracy(
    "lasgd-accuracy",
    CONFIGS,
    NO_MESSAGES,
    "LASGD averages all models, but every average comes some steps late.",
)


def show_accuracy(found, section):
    last = ACCURACY.show(found, section)
    section.finding(
        "lasgd-gossip-accuracy",
        f"{ACCURACIES}: accuracy of ring all-reduce minus accuracy of gossip",
        [
            decide.more(some[RING], some[name], condition(place), name, source="")
            for place, some in last.items()
            for name in (*GOSSIP, *LATER)
        ],
        "Few ranks mix well by gossip, too, and the tested model is the average of all ranks, which no rank has.",
    )


register("lasgd-epoch-acc", "Accuracy after the same number of samples", ACCURACY.needs, show_accuracy)

# ---- figures on merge rules


def merge_settings(conditions):
    place = Setting("", conditions.scale.tuning_ranks, scenario=SLOW_LINKS)
    return {place: {name: place.but(config=CONFIGS[LASGD], overrides=some) for name, some in MERGES.items()}}


def merge_needs(conditions):
    return map_needs(Trajectories, merge_settings(conditions))


def show_merges(found, section):
    settings = merge_settings(found.conditions)
    last, apart = (samples(found, settings, value) for value in (final_accuracy, final_consensus))
    show_values(section, "Test accuracy [%] at the end.", "test accuracy [%]", last, times=False)
    show_values(section, "Distance of the models from their average, by its norm.", "distance", apart, times=False)
    section.finding(
        "lasgd-merge",
        f"{ACCURACIES}, with the learning rate that is tuned for the merge rule delta",
        [
            decide.no_worse(some[DELTA], some[OVERWRITE], condition(place), OVERWRITE, source="")
            for place, some in last.items()
        ],
        "If ranks take few steps during an all-reduce, overwriting drops few steps, and makes all models equal.",
    )


register("lasgd-merge-ablation", "Merge rules side by side", merge_needs, show_merges)

# ---- figures on throughput

MIN_EFFICIENCY = 0.9
"""Least speed that counts as near the speed of ranks that only compute, as a fraction of their speed."""
OF_ALONE = "of the speed of computing alone"
FREE = "If simulated messages take no processor time, nothing can slow LASGD down, so such cases are no evidence"


def throughput_settings(conditions):
    scale = conditions.scale
    many = sorted({*scale.ranks, scale.many_ranks[-2]})
    there = [Setting("", n) for n in many]
    there += [Setting("", scale.tuning_ranks, link=Link(rate, nominal=True)) for rate in (scale.slow_rate, "50mbit")]
    there += [Setting("", n, MEASURED) for n in conditions.ranks(MEASURED)]
    configs = {name: CONFIGS[name] for name in (LASGD, RING)}
    return settings_at(there, configs | {SERVER: "lasgd/asgd", NEVER: NO_MESSAGES})


def throughput_needs(conditions):
    return timed_steps(conditions, throughput_settings(conditions))


def show_throughput(found, section):
    settings = throughput_settings(found.conditions)
    steps = samples(found, settings, seconds_per_step)
    shares = {
        place: {name: quotient(some[NEVER], one) for name, one in some.items() if name != NEVER}
        for place, some in steps.items()
    }
    show_values(
        section,
        "Samples per second, as a fraction of the speed of the same number of ranks that never communicate.",
        "fraction",
        shares,
    )
    section.finding(
        "lasgd-throughput",
        f"the claim holds if LASGD has at least {MIN_EFFICIENCY:g} of the samples per second of ranks that never "
        f"communicate. {FREE}",
        [
            decide.at_least(
                some[LASGD],
                MIN_EFFICIENCY,
                condition(place),
                OF_ALONE,
                source=place.source,
                kind=kind_of_pace(found[settings[place][LASGD]]),
            )
            for place, some in shares.items()
        ],
        "The all-reduce in the background takes processor time from the training.",
    )
    section.finding(
        "lasgd-server",
        f"the server is a bottleneck if workers have at most {MIN_EFFICIENCY:g} of the samples per second of ranks "
        "that never communicate",
        [
            decide.at_most(some[SERVER], MIN_EFFICIENCY, condition(place), OF_ALONE, source=place.source)
            for place, some in shares.items()
        ],
        "Few ranks on fast links do not fill the server's link.",
    )
    section.note(
        "LASGD never waits in its training. So its samples per second show the processor time of the all-reduce, and "
        "not how well models are mixed: with slow links or many ranks, averages are late or rare."
    )


register("lasgd-throughput", "Samples per second over ranks and over bandwidth", throughput_needs, show_throughput)

# ---- figures on stragglers

SLOWER = 0.9 * 4
"""Least factor by which a step must be longer to count as having the pace of a rank that is 4 times slower."""
TWO_STRAGGLERS = Scenario("two ranks 4 times slower", (*STRAGGLER.overrides, "stragglers.slowdown.2=4.0"))
SENSITIVE = {STRAGGLER: SLOWER, SLOW_HOST: SLOWER, TWO_STRAGGLERS: SLOWER, SLOW_LINKS: 1.25}
"""Least factor by which a scenario must prolong a step so that the algorithm counts as sensitive, by scenario.

The steps in a scenario are compared with steps of equal ranks that only compute.
"""


def straggler_settings(conditions):
    there = places(conditions, (EQUAL, *SENSITIVE), (EQUAL, SLOW_HOST))
    there = [place for place in there if place.scenario != TWO_STRAGGLERS or place.ranks > 2]
    return settings_at(there, {name: CONFIGS[name] for name in (LASGD, RING)} | {NEVER: NO_MESSAGES})


def straggler_needs(conditions):
    return timed_steps(conditions, straggler_settings(conditions))


def show_stragglers(found, section):
    settings = straggler_settings(found.conditions)
    steps = samples(found, settings, lambda run: 1000 * seconds_per_step(run))
    show_values(section, "Milliseconds in which n ranks take n steps.", "ms", steps)
    slowed = {place: some for place, some in steps.items() if place.scenario != EQUAL}
    section.finding(
        "lasgd-straggler",
        "steps per second, as a fraction of the speed of ranks that never communicate; the claim holds from "
        f"{MIN_EFFICIENCY:g} on. {FREE}",
        [
            decide.at_least(
                quotient(some[NEVER], some[LASGD]),
                MIN_EFFICIENCY,
                condition(place),
                OF_ALONE,
                source=place.source,
                kind=kind_of_pace(found[settings[place][LASGD]]),
            )
            for place, some in slowed.items()
            if not place.scenario.slow_links
        ],
        "The all-reduce in the background takes processor time from LASGD's steps.",
    )
    section.finding(
        "lasgd-allreduce",
        "time of a step with an all-reduce, over the time of a step of equal ranks that only compute; the claim holds "
        f"from {SLOWER:g} on with slow ranks, and from {SENSITIVE[SLOW_LINKS]:g} on with slow links",
        [
            decide.at_least(
                quotient(some[RING], steps[place.but(scenario=EQUAL)][NEVER]),
                SENSITIVE[place.scenario],
                condition(place),
                "times as long",
                source=place.source,
            )
            for place, some in slowed.items()
        ],
    )


register(
    "lasgd-straggler", "Slow ranks and links: steps of LASGD and synchronous SGD", straggler_needs, show_stragglers
)
