"""The tables and figures of GRSGD (Zhou, Tu, Ren 2023), which is compared with ring all-reduce and D-PSGD."""

from dataclasses import replace

import numpy as np

from experiments.runner import decide
from experiments.runner.needs import Steps, Trainings
from experiments.runner.outcome import BY_CONSTRUCTION
from experiments.runner.run_spec import MEASURED, Link
from experiments.runner.setting import EQUAL, SLOW_HOST, SLOW_LINKS, STRAGGLER, Setting
from experiments.tables.compare import (
    ALONE,
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
from experiments.tables.final_accuracy import FinalAccuracy
from experiments.tables.link_rates import LinkRates
from experiments.tables.numbers import final_accuracy, part_of_a_step
from experiments.tables.robustness import Robustness
from experiments.tables.targets import register
from experiments.tables.time_to_accuracy import TimeToAccuracy
from grsgd.runs.measures import PARTS, bytes_sent, final_consensus, seconds_per_step

OURS, RING, DPSGD = "GRSGD", "ring all-reduce", "D-PSGD"
CONFIGS = {OURS: "grsgd/grsgd", RING: "grsgd/ring_allreduce", DPSGD: "grsgd/dpsgd"}
NO_MESSAGES = "grsgd/alone"
SCENARIOS = {
    EQUAL: "With equal ranks and fast links, ranks wait little, and a step of an all-reduce brings training further.",
    STRAGGLER: "If there are few ranks, they wait for the slow rank only a little longer than its own steps take.",
    SLOW_HOST: "A slow processor also takes longer for its part of the communication.",
    SLOW_LINKS: "On slow links, models arrive late, and late models bring training less far.",
}

# ---- figures on time and accuracy

TIME = TimeToAccuracy(
    dict.fromkeys((RING, DPSGD), "grsgd-time"),
    CONFIGS,
    NO_MESSAGES,
    SCENARIOS,
    measured=(SLOW_HOST,),
    by_clock=tuple(CONFIGS),
    at_desk=(*CONFIGS, ALONE),
)
register("grsgd-time-to-acc", "Time to a fixed accuracy", TIME.needs, TIME.show)

LINKS = LinkRates("grsgd-links", CONFIGS, RING, NO_MESSAGES)
register("grsgd-link-rates", "The break-even: cost of communication at which GRSGD saves time", LINKS.needs, LINKS.show)

OPTIONS = {
    "default options": (),
    "pushes to the successor": ('algorithm.policy="successor"',),
    "plain averages": ('algorithm.merge="average"',),
    "a full inbox merges models": ('algorithm.inbox_full="merge"',),
}
ROBUST = Robustness("grsgd-options", CONFIGS[OURS], (RING, CONFIGS[RING]), OPTIONS, STRAGGLER)
register("grsgd-robustness", "The verdict on time with each inferred option", ROBUST.needs, ROBUST.show)

ACCURACY = FinalAccuracy(
    "grsgd-accuracy",
    CONFIGS,
    NO_MESSAGES,
    "A ring brings models together slowly, and more ranks make it slower.",
)
register("grsgd-epoch-acc", "Accuracy after the same number of samples", ACCURACY.needs, ACCURACY.show)

# ---- figures on waiting

MAX_WAIT_RATIO = 0.01
"""Greatest waiting time that counts as not waiting, as a fraction of the waiting time of ring all-reduce."""
MAX_PACE = 1.25
"""Greatest factor by which one rank that is 4 times slower may prolong the steps of ranks that count as not waiting."""


def stepping(conditions):
    there = places(conditions, SCENARIOS, (EQUAL, SLOW_HOST))
    by_clock = {name: CONFIGS[name] for name in (OURS, RING)}
    return {
        place: some
        for one in there
        for place, some in settings_at([one], by_clock if one.source == MEASURED else CONFIGS).items()
    }


def wait_needs(conditions):
    return timed_steps(conditions, stepping(conditions))


def show_wait(found, section):
    settings = stepping(found.conditions)
    waits = samples(found, settings, lambda run: 1e3 * float(part_of_a_step(run, "wait").mean()))
    caption = "Milliseconds that a rank waits for others in a step, mean over the ranks."
    show_values(section, caption, "ms", waits, shows="waiting")
    steps = samples(found, settings, others_step)
    paces = {
        place: {name: quotient(one, steps[place.but(scenario=EQUAL)][name]) for name, one in some.items()}
        for place, some in steps.items()
        if place.scenario in (STRAGGLER, SLOW_HOST)
    }
    show_values(section, "Step time of the other ranks, over the step time of equal ranks.", "times as long", paces)
    never_waits = [
        replace(
            decide.fact(
                max(some[OURS].known) < MAX_WAIT_RATIO * min(some[RING].known),
                f"waiting, {condition(place)}",
                RING,
                BY_CONSTRUCTION,
                some[OURS].median(),
                "ms of waiting per step",
                place.source,
                some[OURS],
            ),
            note=f"these are GRSGD's; ring all-reduce has {some[RING].median():.3g} ms",
        )
        for place, some in waits.items()
    ]
    keeps_pace = [
        decide.at_most(
            some[OURS],
            MAX_PACE,
            f"step of the other ranks, {condition(place)}, compared with a step of equal ranks",
            "times as long",
            source=place.source,
            kind=kind_of_pace(found[settings[place][OURS]]),
        )
        for place, some in paces.items()
    ]
    section.finding(
        "grsgd-wait",
        "the counter of waiting time, which no step of GRSGD raises; and the step time of the other ranks if one rank "
        f"is slow. The claim holds if these steps take at most {MAX_PACE:g} times as long as with equal ranks. If "
        "simulated messages take no processor time, nothing can slow the other ranks down",
        never_waits + keeps_pace,
        "A busy processor or link raises the step time, but not the counter.",
    )


def others_step(run) -> float:
    """Return the mean seconds of a step of all ranks except rank 1, which is slow."""
    return float(sum(np.delete(part_of_a_step(run, part), 1).mean() for part in PARTS))


register("grsgd-wait", "Time spent waiting in a step", wait_needs, show_wait)

# ---- figures on the redundancy of the data

SHARDS = ("data.alpha=0.5",)
"""Override for shards with unequal shares of the classes.

If the shares of the classes were equal, each rank would learn enough from its own shard.
"""
REDUNDANCIES = (2,)


def redundancy_settings(conditions):
    """Return the settings of the runs, by place and by rho and H.

    rho: number of ranks per shard; H: number of steps between two pushes of a model.
    """
    place = Setting("", conditions.scale.tuning_ranks)
    ours = place.but(config=CONFIGS[OURS])
    kinds = [(1, 1), *((rho, h) for h in REDUNDANCIES for rho in (1, h))]
    return {
        place: {
            kind(rho, h): ours.but(overrides=(*SHARDS, f"data.replication={rho}", f"algorithm.H={h}"))
            for rho, h in kinds
        }
    }


def kind(rho: int, h: int) -> str:
    return f"rho = {rho}, H = {h}"


def redundancy_needs(conditions):
    return map_needs(Trainings, redundancy_settings(conditions))


def show_redundancy(found, section):
    settings = redundancy_settings(found.conditions)
    accuracy, sent, apart = (
        samples(found, settings, value)
        for value in (final_accuracy, lambda run: bytes_sent(run) / 1e6, final_consensus)
    )
    show_values(section, "Test accuracy [%] at the end, shards by label.", "test accuracy [%]", accuracy, times=False)
    show_values(section, "Megabytes sent by all ranks.", "MB", sent, times=False)
    show_values(section, "Distance of the models from their average, by its norm.", "distance", apart, times=False)
    (accuracy,), (sent,) = accuracy.values(), sent.values()
    cases = []
    for rho in REDUNDANCIES:
        ours, base, same = kind(rho, rho), kind(1, 1), kind(1, rho)
        cases += [
            decide.less(sent[ours], sent[base], ours, base, "% fewer bytes", source="", kind=BY_CONSTRUCTION),
            decide.no_worse(accuracy[ours], accuracy[base], ours, base, source=""),
            decide.more(accuracy[ours], accuracy[same], ours, same, source=""),
        ]
    section.finding(
        "grsgd-redundancy",
        "rho is the number of ranks per shard, and H the number of steps between two pushes. Bytes fall because H is "
        "raised. The claim holds if at most 1 point of accuracy is then lost, and if accuracy is less with the same H "
        "but no redundancy; simulated, shards by label (Dirichlet, alpha = 0.5)",
        cases,
        "Pushing less often saves bytes, and overlapping shards are meant to make up for the lost accuracy.",
    )
    section.note("All runs have the learning rate that was tuned with rho = 1 and H = 1, on shards that are alike.")


register("grsgd-redundancy", "Redundancy of the data: accuracy and bytes", redundancy_needs, show_redundancy)

# ---- times of steps at the size of the paper's experiments

RANKS, EPOCHS, IMAGES = 32, 90, 1_281_167
GENERATED = ('data.name="synthetic"', "data.shape=[3,32,32]", "data.classes=1000", "data.samples=5000")
"""Overrides for generated data that replace ImageNet.

Runs with these data compute no gradients, and the number of parameters does not depend on the size of images.
"""
COMPUTING = "lognormal:0.1,0.05"
"""Distribution of a step's seconds (median, sigma of the logarithm).

The median gives 320 images per second, as on a GPU of 2017 in single precision.
"""


def imagenet_settings(conditions):
    links = [Link(rate, nominal=True) for rate in ("10gbit", "25gbit", "100gbit")]
    there = [Setting("", RANKS, overrides=GENERATED, link=link, compute=COMPUTING) for link in links]
    there.append(there[1].but(scenario=STRAGGLER))
    return settings_at(there, {name: config.replace("/", "/resnet50/") for name, config in CONFIGS.items()})


def imagenet_needs(conditions):
    return map_needs(short_runs, imagenet_settings(conditions))


def short_runs(setting: Setting) -> Steps:
    """Return the specification of runs that find the time of a step.

    If all ranks are equally fast, the runs have few steps. Runs of GRSGD with a slow rank have more steps, because the
    slow rank's effect spreads along the ring by one rank per step.
    """
    alike = setting.scenario == EQUAL or setting.config.endswith("ring_allreduce")
    return Steps(setting, seeds=3, steps=2 if alike else 2 * RANKS)


def show_imagenet(found, section):
    hours = samples(found, imagenet_settings(found.conditions), hours_of_imagenet)
    show_values(
        section,
        f"Surrogate: hours that {RANKS} ranks need for the samples of {EPOCHS} epochs of ImageNet with ResNet-50, "
        "whatever the accuracy.",
        "hours",
        hours,
    )
    section.finding(
        "grsgd-imagenet-times",
        f"surrogate: the computing time of a step is assumed, not measured ({COMPUTING}: median seconds, sigma); no "
        "gradient is computed; time for the same number of samples, not to an accuracy",
        [
            decide.less(some[OURS], some[other], condition(place), other)
            for place, some in hours.items()
            for other in (RING, DPSGD)
        ],
        "If links are fast compared with processors, ranks wait little.",
    )


def hours_of_imagenet(run) -> float:
    steps = EPOCHS * IMAGES / (RANKS * run.attributes["batch_size"])
    return steps * seconds_per_step(run) / 3600


register("grsgd-imagenet-times", "ImageNet and ResNet-50 on 32 ranks: times only", imagenet_needs, show_imagenet)
