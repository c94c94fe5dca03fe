"""The accuracy of training with coding, with quantised gradients, and with randomly chosen parts of gradients."""

import numpy as np

from coding.fixed_point import FixedPoint
from experiments.papers.cssgd_2021 import tasks
from experiments.papers.cssgd_2021.accuracy import final, trained
from experiments.papers.cssgd_2021.tasks import DNN, RING, Method, coded
from experiments.runner import decide
from experiments.runner.needs import Trainings
from experiments.runner.outcome import BY_CONSTRUCTION
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

FIXED = FixedPoint(10.0)
CODED, SAME_BLOCKS = coded(2), Method("SSGD with the same blocks", "ssgd", 2)
"""CSSGD, and SSGD that adds up the gradients of the blocks into which CSSGD divides the batch."""
LOSSY = tuple(
    Method(f"ring all-reduce, {what}", RING.config, overrides=(f'algorithm.compression="{compression}"', *more))
    for what, compression, *more in (
        ("int8", "int8"),
        ("1 bit", "sign"),
        ("1 % of the gradient at random", "random-k", "algorithm.ratio=0.01"),
    )
)
"""Methods that quantise gradients (QSGD, signs) or send random parts of gradients, all with error feedback."""


# ---- functions for coded training


def needs(conditions) -> dict:
    trained_with = (RING, CODED, SAME_BLOCKS)
    return {method: Trainings(tasks.setting(conditions, DNN, method, tasks.FEWER_NODES)) for method in trained_with}


def show(found: Found, section: Section):
    apart = max(map(course_apart, found[CODED], found[SAME_BLOCKS]))
    same = "loss and accuracy at all snapshots"
    cases = [
        decide.fact(apart == 0, same, SAME_BLOCKS.name, BY_CONSTRUCTION, apart, "is the greatest difference"),
        decide.no_worse(final(found[CODED]), final(found[RING]), "final accuracy", RING.name, source=""),
    ]
    show_accuracies(found, section)
    accounting = (
        f"DNN, {tasks.FEWER_NODES} nodes, r = 2: final accuracy, compared with float32 gradients; a loss of up to 1 "
        "point does not count. Trainings of the same blocks with and without coding are equal bit for bit by "
        "construction: int32 numbers are added up exactly"
    )
    section.finding("cssgd-precision", accounting, cases)
    error = largest_error() / FIXED.step
    within = error <= 0.500001  # half a step of fixed-point numbers, and 0.000001 for float64's rounding
    exact = decide.fact(within, "a million numbers", "", BY_CONSTRUCTION, error, "steps of error at most")
    section.finding("cssgd-fixed-point", "numbers of the whole range, encoded and decoded", [exact])
    section.note(
        f"The sum of B blocks is off by at most B/2 steps of {FIXED.step:.2g}. Blocks are decoded singly and added up "
        "as int64, so no sum overflows."
    )


def show_accuracies(found: Found, section: Section):
    rows = [[method.name, final(runs).text(".2f")] for method, runs in found.items()]
    section.table(f"Final test accuracy, {tasks.FEWER_NODES} nodes, in per cent.", ["algorithm", "accuracy"], rows)


def course_apart(ours: Run, theirs: Run) -> float:
    """Return the greatest difference between two trainings in loss or accuracy, over all snapshots."""
    columns = ("train_loss", "test_accuracy")
    return max(float(np.nanmax(np.abs(ours.curve[name] - theirs.curve[name]))) for name in columns)


def largest_error() -> float:
    """Return the greatest error of encoding and decoding a number, over the whole range of fixed-point numbers."""
    given = np.linspace(-FIXED.limit, FIXED.limit, 1_000_001)
    encoded, decoded = np.empty(given.size, np.int32), np.empty(given.size)
    FIXED.encode(given, encoded)
    FIXED.decode(encoded, decoded)
    return float(np.abs(decoded - given).max())


# ---- trainings with quantised gradients, and with random parts of gradients


def lossy_needs(conditions) -> dict:
    exact = {method: tasks.setting(conditions, DNN, method, tasks.FEWER_NODES) for method in (RING, CODED)}
    lossy = {
        method: tasks.setting(conditions, DNN, method, tasks.FEWER_NODES).but(tuned_with=method.overrides)
        for method in LOSSY
    }
    return {method: Trainings(setting) for method, setting in (exact | lossy).items()}


def show_lossy(found: Found, section: Section):
    show_accuracies(found, section)
    ours, cases = final(found[CODED]), []
    for method in LOSSY:
        theirs = final(found[method])
        case = decide.more(ours, theirs, f"loss of accuracy with {method.name}", CODED.name, source="")
        cases.append(trained(found, DNN, case, ours, theirs))
    section.finding(
        "cssgd-quantising",
        f"DNN, {tasks.FEWER_NODES} nodes: final test accuracy of CSSGD, which adds up exactly, minus the accuracy with "
        "compressed gradients; each side has its own learning rate and the same number of samples",
        cases,
        "Error feedback adds the error of one message to the next message, so little is lost in the end.",
    )
