"""Scales (sizes of experiments) at which a paper is repeated.

The small scales train stand-ins in minutes, and the great ones have the paper's own sizes. The scales are ``SMOKE``,
``DESK``, ``PAPER``, ``IMAGENET`` and ``TINY``. The folders of the papers have the settings of the trainings that
depend on the scale (data, model, epochs, target accuracy). The file base.toml in each paper's folder has the sizes
that the paper states. At the scales ``SMOKE`` and ``DESK``, the files smoke.toml and desk.toml replace values of
base.toml.
"""

from typing import NamedTuple


class Scale(NamedTuple):
    """The size of an experiment, as numbers of ranks, seeds and steps, rates of links, and so on.

    Numbers of ranks of a scale count the ranks that train; a parameter server is one more rank.
    """

    name: str
    description: str
    """Description of the scale, for readers of a report."""
    file: str | None
    """Name of the TOML file, in the folder of a training, with the scale's overrides; None if there are none."""
    overrides: tuple[str, ...]
    """``key=value`` overrides of every training, which take precedence over the TOML file of the scale."""
    seeds: int
    """Number of seeds of simulated trainings."""
    clock_seeds: int
    """Number of seeds of measured trainings, on the testbed or a cluster."""
    ranks: tuple[int, ...]
    """Numbers of ranks of simulated trainings."""
    clock_ranks: tuple[int, ...]
    """Numbers of ranks of measured trainings, on the testbed or a cluster."""
    coding_ranks: tuple[int, ...]
    """Numbers of ranks of trainings with CSSGD."""
    many_ranks: tuple[int, ...]
    """Numbers of ranks of the comparisons over many ranks, in which only the time of a step is simulated."""
    learning_rates: tuple[float, ...]
    """Grid of learning rates that are tried for every algorithm, in simulated time on ``tuning_ranks`` ranks.

    The lowest or highest rate of the grid is tried only if its neighbour in the grid is the best of the rates tried
    before. Learning rates beyond the grid are tried only if the lowest or highest rate of the grid is the best.
    """
    tuning_ranks: int
    """Number of ranks of the trainings that tune learning rates."""
    tuning_seeds: int
    """Number of seeds with which learning rates close to the grid's best rate are tried; with 1, they are not tried."""
    steps: int
    """Number of steps per rank in runs that measure only the time of a step."""
    run_timeout: float
    """Greatest number of seconds of a measured run; a run that takes longer is ended."""
    rate: str
    """Rate of every host's link, on the testbed and in simulated time."""
    slow_rate: str
    """Rate of every host's link in scenarios with slow links."""
    cpu: float
    """Number of cores of each host of the testbed."""
    tuning_images: int | None = None
    """Number of test images in trainings that tune learning rates; None for all test images."""
    has_one_calibration: bool = False
    """True if all simulated times follow from one calibration, so that the variance between calibrations is unknown."""
    has_second_look: bool = False
    """True if a target whose claims are undecided gets twice as many seeds, unless more seeds would not decide them."""
    is_joined: bool = False
    """True if runs and calibrations that other machines recorded in docs/results are used like this machine's."""


SMOKE = Scale(
    name="smoke",
    description="small stand-ins for the papers' models, data and lengths, in an hour on two cores",
    file="smoke.toml",
    overrides=(),
    seeds=5,
    clock_seeds=3,
    ranks=(8,),
    clock_ranks=(8,),
    coding_ranks=(8,),
    many_ranks=(2, 4, 6, 8, 10, 16, 32, 64),
    learning_rates=(0.01, 0.02, 0.05, 0.15, 0.4, 1.0),
    tuning_ranks=8,
    tuning_seeds=1,
    steps=16,
    run_timeout=600,
    rate="1gbit",
    slow_rate="100mbit",
    cpu=0.2,
    has_one_calibration=True,
)
DESK = SMOKE._replace(
    name="desk",
    description="the papers' kinds of models and data, with short recipes where the papers' take days; a night on two "
    "cores, in pieces",
    file="desk.toml",
    coding_ranks=tuple(range(2, 11)),
    many_ranks=(*range(2, 11), 16, 32, 64),
    tuning_seeds=3,
    tuning_images=2000,
    steps=32,
    run_timeout=3600,
    has_one_calibration=False,
    has_second_look=True,
    is_joined=True,
)
PAPER = SMOKE._replace(
    name="paper",
    description="the papers' sizes, as far as they are known",
    file=None,
    clock_seeds=5,
    ranks=(4, 8, 16),
    clock_ranks=(4, 8),
    coding_ranks=tuple(range(2, 11)),
    many_ranks=(*DESK.many_ranks, 128, 256),
    learning_rates=(0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8),
    tuning_seeds=3,
    steps=64,
    run_timeout=24 * 3600,
    has_one_calibration=False,
)
IMAGENET = PAPER._replace(
    name="imagenet",
    description="the papers' sizes, on your own ImageNet where a paper has ImageNet",
    file="imagenet.toml",
)
TINY = SMOKE._replace(
    name="tiny",
    description="a test of the program; its figures mean nothing",
    overrides=(
        'data.name="digits"',
        "data.batch_size=16",
        "data.only_test=100",
        "train.epochs=2",
        "train.snapshots=8",
        "train.target_accuracy=0.5",
        "train.compute_seconds=0",
    ),
    seeds=1,
    clock_seeds=1,
    ranks=(2, 3),
    clock_ranks=(3,),
    coding_ranks=(2, 3),
    many_ranks=(2, 3),
    learning_rates=(0.05, 0.1, 0.2, 0.4),
    tuning_ranks=3,
    steps=4,
    cpu=0.5,
)
SCALES = {scale.name: scale for scale in (SMOKE, DESK, PAPER, IMAGENET, TINY)}
