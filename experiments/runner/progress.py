"""The progress line on the terminal while runs are being made."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from experiments.runner.costs import Costs, kind
from experiments.runner.run_spec import MEASURED, RunSpec


class Progress:
    """A line on the terminal with the present run, the number of missing runs, and the estimated time for them.

    specs: the missing runs. of: number of all runs, existing or missing. workers: number of simulations at a time.
    what: first words of the progress line.
    """

    def __init__(self, specs: list[RunSpec], of: int, workers: int, costs: Costs, what: str):
        self.left, self.workers, self.costs = Counter(map(kind, specs)), workers, costs
        self.running: list[RunSpec] = []
        self.bar = tqdm(
            total=of,
            initial=of - len(specs),
            desc=what,
            bar_format="{desc}: {n_fmt} of {total_fmt} runs |{bar:24}| {elapsed}{postfix}",
            disable=not specs,
            mininterval=0.2 if sys.stderr.isatty() else 20,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()

    def begin(self, specs: Iterable[RunSpec]) -> Iterator[RunSpec]:
        """Yield the runs of ``specs``; a run counts as begun as soon as the caller takes it."""
        for spec in specs:
            self.running.append(spec)
            self._say()
            yield spec

    def end(self, spec: RunSpec):
        """Record that the run ``spec`` has ended, and update the progress line."""
        self.running.remove(spec)
        self.left[kind(spec)] -= 1
        self.bar.update()
        self._say()

    def _say(self):
        now = f"; now {self.running[0].words()}" if self.running else ""
        hours = duration(hours_of(self.left, self.workers, self.costs))
        self.bar.set_postfix_str(f"{self.left.total()} left, about {hours}{now}", refresh=False)


def hours_of(counts: Counter[RunSpec], workers: int, costs: Costs) -> float:
    """Return the estimated hours for ``counts``, numbers of runs by kind, with ``workers`` simulations at a time."""
    seconds = {spec: count * costs.seconds(spec) for spec, count in counts.items()}
    return sum(took if spec.source == MEASURED else took / workers for spec, took in seconds.items()) / 3600


def duration(hours: float) -> str:
    """Return ``hours`` as text, in hours, minutes or seconds."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours * 60 >= 1 else f"{3600 * hours:.0f} s"
