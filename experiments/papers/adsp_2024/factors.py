"""The two factors of the time to an accuracy: the number of samples, and the seconds per sample.

Staleness of gradients changes the number of samples, and waiting changes the seconds per sample. The number of samples
varies as much as trainings do, but the seconds per sample are known to one per cent. The two factors are therefore
compared separately, each with its own interval.
"""

from collections.abc import Iterable

from experiments.papers.adsp_2024.compared import CONFIGS, OTHERS, OURS
from experiments.papers.adsp_2024.speed import seconds_per_sample
from experiments.runner import decide, sample
from experiments.runner.needs import to_target
from experiments.runner.outcome import Case
from experiments.runner.sample import Sample
from experiments.tables.section import Section
from experiments.tables.targets import Found

NO_WAITING, NO_STALENESS = "ASP", "BSP"
"""The name of the strategy that never waits, and the name of the strategy whose gradients are never stale."""
SAMPLES, SECONDS = "% fewer samples", "% less time per sample"


def samples_of(found: Found) -> dict[tuple, Sample]:
    """Return the number of samples to the target accuracy, by the key of the trainings in ``found``."""
    return {key: to_target(runs, "samples") for key, runs in found.items()}


def paces_of(found: Found) -> dict[tuple, Sample]:
    """Return the seconds per sample in the second half of the training, by the key of the trainings in ``found``."""
    return {key: sample.of(runs, seconds_per_sample) for key, runs in found.items()}


def show(found: Found, section: Section, source: str) -> None:
    """Write into the section what adsp saves in each factor of its time.

    The section also tells what waiting costs per sample, and how many samples stale gradients cost.

    source: the source of times (simulated or measured) of the shown runs.
    """
    samples, paces = samples_of(found), paces_of(found)
    delays = list(dict.fromkeys(key[0] for key in found if key[1] == source))

    def saved(values: dict, where: str, ours: str, theirs: str, unit: str, condition: str) -> Case:
        both = values[where, source, ours], values[where, source, theirs]
        return decide.less(*both, condition, theirs, unit, source=source, pairs=True)

    section.table(
        "Savings of adsp in the two factors of its time: samples to the target accuracy, and seconds per sample.",
        ["delays", "against", "samples", "seconds per sample"],
        [
            [
                where,
                other,
                *(
                    saved(of, where, OURS, other, unit, where).text()
                    for of, unit in ((samples, SAMPLES), (paces, SECONDS))
                ),
            ]
            for where in delays
            for other in OTHERS
        ],
    )
    section.finding(
        "adsp-balance",
        "waiting: seconds per sample of ASP, which never waits, compared with each strategy that waits. Staleness: "
        "samples to the target accuracy of BSP, in which no gradient is stale, compared with ASP",
        [
            saved(paces, where, NO_WAITING, other, SECONDS, f"cost of waiting, {where}")
            for where in delays
            for other in waiting(CONFIGS)
        ]
        + [saved(samples, where, NO_STALENESS, NO_WAITING, SAMPLES, f"cost of staleness, {where}") for where in delays],
        "If all workers have similar data, stale gradients cost few samples.",
    )


def waiting(names: Iterable[str]) -> list[str]:
    """Return the strategies, except adsp, that wait for slow workers."""
    return [name for name in names if name not in (OURS, NO_WAITING)]
