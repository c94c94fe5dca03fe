"""The comparison of the test accuracies that algorithms reach after equally many samples, as several papers need it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.runner import decide
from experiments.runner.conditions import Conditions
from experiments.runner.needs import Need, Trajectories
from experiments.runner.sample import Sample
from experiments.runner.setting import EQUAL, Setting
from experiments.tables.compare import (
    CONTROLS,
    NEVER,
    Settings,
    condition,
    map_needs,
    places,
    samples,
    settings_at,
    show_values,
)
from experiments.tables.draw import Panel
from experiments.tables.numbers import final_accuracy
from experiments.tables.section import Section
from experiments.tables.targets import Found
from grsgd.runs.run_file import Run

ACCURACIES = "test accuracy of the averaged model after the same number of samples, mean of the last snapshots"


@dataclass(frozen=True)
class FinalAccuracy:
    """The comparison of one algorithm's final test accuracy with other algorithms', in simulated time with equal ranks.

    claim: the id of the claim that the algorithm is not worse. configs: configurations by name of the algorithm; the
    first is the algorithm of the claim, the second the algorithm that it is compared with, and all others are only
    shown. alone: the configuration of ranks that never communicate. reason: the reason why the algorithm is worse, if
    it is.
    """

    claim: str
    configs: Mapping[str, str]
    alone: str
    reason: str

    def settings(self, conditions: Conditions) -> Settings:
        return settings_at(places(conditions, [EQUAL]), self.configs | {NEVER: self.alone})

    def needs(self, conditions: Conditions) -> dict[Setting, Need]:
        return map_needs(Trajectories, self.settings(conditions))

    def show(self, found: Found, section: Section) -> dict[Setting, dict[str, Sample]]:
        """Write the accuracies into the section; return them in per cent, by place and name of the algorithm."""
        settings = self.settings(found.conditions)
        section.figure(
            "Accuracy of the averaged model over epochs.",
            [
                Panel(
                    condition(place),
                    "epochs",
                    "test accuracy [%]",
                    curves={name: over_epochs(found[one]) for name, one in some.items()},
                    controls=CONTROLS,
                )
                for place, some in settings.items()
            ],
            times=False,
        )
        last = samples(found, settings, final_accuracy)
        show_values(section, "Accuracy at the end [%].", "test accuracy [%]", last, times=False)
        ours, other, *_ = self.configs
        cases = [
            decide.no_worse(
                some[ours],
                some[other],
                condition(place),
                other,
                source="",
                pairs=found.conditions.share_numbers(settings[place][ours], settings[place][other]),
            )
            for place, some in last.items()
        ]
        section.finding(self.claim, ACCURACIES, cases, self.reason)
        return last


def over_epochs(runs: Iterable[Run]) -> dict[int, tuple]:
    """Return the curve of each run by seed: the epochs and the test accuracies in per cent of its snapshots."""
    return {
        int(run.attributes["seed"]): (
            run.curve["samples"] / run.attributes["train_samples"],
            100 * run.curve["test_accuracy"],
        )
        for run in runs
    }
