"""A line on the terminal about the runs that are being made."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from experiments.runner.costs import Costs, kind
from experiments.runner.run_spec import MEASURED, RunSpec


class Progress:
    """Says what runs now, how many runs are left, and by the estimates for how long.

    specs: the runs that are missing. of: how many there will be in all. workers: how many simulations are side by side.
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
        """Yield runs; each begins when it is taken."""
        for spec in specs:
            self.running.append(spec)
            self._say()
            yield spec

    def end(self, spec: RunSpec):
        """Tell that a run has ended."""
        self.running.remove(spec)
        self.left[kind(spec)] -= 1
        self.bar.update()
        self._say()

    def _say(self):
        now = f"; now {self.running[0].words()}" if self.running else ""
        hours = duration(hours_of(self.left, self.workers, self.costs))
        self.bar.set_postfix_str(f"{self.left.total()} left, about {hours}{now}", refresh=False)


def hours_of(counts: Counter[RunSpec], workers: int, costs: Costs) -> float:
    """Return the hours that so many runs of each kind take, simulations side by side."""
    seconds = {spec: count * costs.seconds(spec) for spec, count in counts.items()}
    return sum(took if spec.source == MEASURED else took / workers for spec, took in seconds.items()) / 3600


def duration(hours: float) -> str:
    """Return a time in words."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours * 60 >= 1 else f"{3600 * hours:.0f} s"
