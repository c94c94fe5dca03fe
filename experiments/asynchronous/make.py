"""Makes the runs, in simulated time, and finds those that are there."""

from collections.abc import Callable, Iterable
from pathlib import Path

from experiments.asynchronous.plan import missing
from experiments.asynchronous.points import Point
from experiments.asynchronous.result import Result
from experiments.runner.parallel import make_in_parallel
from grsgd.runs.run_file import Run, load_run

RUN_SECONDS = 1.2
"""About how long a simulation takes on one core, on average."""


def kept(point: Point, folder: Path) -> Run | None:
    """Return the point's run if it is there."""
    return point.simulation().kept(folder)


def hours(runs: int, workers: int) -> float:
    """Return about how long so many runs take."""
    return runs * RUN_SECONDS / workers / 3600


def there(distributions: Iterable[str], folder: Path) -> dict[Point, Result]:
    """Return the results of the runs that are there, as far as they would be made."""
    results: dict[Point, Result] = {}
    while found := {p: run for p in missing(distributions, results) if (run := kept(p, folder)) is not None}:
        results |= {point: Result.of(point, run) for point, run in found.items()}
    return results


def simulate_point(point: Point, folder: Path):
    """Make a run file."""
    point.simulation().make(folder)


def complete(
    results: dict[Point, Result], distributions: Iterable[str], folder: Path, workers: int, done: Callable[[], None]
):
    """Make what is missing of the results, and add it to them; ``done`` is called after each run."""
    while points := missing(distributions, results):
        for point in make_in_parallel(simulate_point, points, folder, workers):
            results[point] = Result.of(point, load_run(point.simulation().path(folder)))
            done()
