"""The loss that each method reaches on as many samples as all-reduce trains on: ``python -m experiments.learning gpt``.

The program's argument names the trained model, ``gpt`` or ``cnn``. For each row of the printed table, the same model
is trained on 8 simulated ranks, at several learning rates. A row shows the runs at the learning rate with the least
test loss after a fixed number of samples. The printed table has the mean loss over the seeds, with the least and the
greatest loss. The simulated links are fast, and training steps take random times. Methods whose ranks do not wait
therefore merge old models, as on a cluster. No time is measured. A method with a server has one rank more than other
methods, because the server does not train.

The run files of this experiment are stored in results/learning. A run that exists is not repeated unless code or
settings on which it depends have changed.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from experiments.arguments import add_workers
from experiments.runner.costs import Seconds
from experiments.runner.kept import KeptRuns
from experiments.runner.parallel import Unfinished
from experiments.runner.run_spec import SIMULATED, Link, RunSpec, load_config
from grsgd.algorithms.central import workers_of
from grsgd.config import Config
from grsgd.runs.run_file import Run

PROGRAM = "python -m experiments.learning"
RANKS = 8
"""Number of ranks that train."""
COMPUTE = "lognormal:0.1,0.3"
NETWORK = Link("10gbit", nominal=True)
RUN_SECONDS = Seconds(60.0, 0.0)
"""Approximate seconds of a run on one core, which are assumed until a similar run exists."""
RATES = (0.5, 1.0, 2.0)
"""Learning rates of the runs, as multiples of the configuration's learning rate."""
ROWS: dict[str, dict] = {
    "ring_allreduce": {},
    "ring_allreduce, int8": {"compression": "int8"},
    "ring_allreduce, int4": {"compression": "int4"},
    "ring_allreduce, top-k of 1 %": {"compression": "top-k"},
    "ring_allreduce, sign": {"compression": "sign"},
    "ring_allreduce, power-sgd": {"compression": "power-sgd"},
    "dpsgd": {},
    "dpsgd, base-3": {"topology": "base-3"},
    "choco_sgd": {},
    "exact_diffusion": {},
    "gradient_tracking": {},
    "relaysgd": {},
    "grsgd": {},
    "grsgd, int8": {"compression": "int8"},
    "grsgd, outer step": {"H": 4, "outer_lr": 0.7, "outer_momentum": 0.5},
    "local_sgd": {"H": 4},
    "diloco": {"H": 4, "outer_momentum": 0.5},
    "diloco, int4": {"H": 4, "outer_momentum": 0.5, "compression": "int4"},
    "noloco": {"H": 4},
    "decoupled": {"H": 4, "outer_momentum": 0.5},
    "parameter_server, m_sync": {"strategy": "m_sync"},
    "parameter_server, rennala": {"strategy": "rennala"},
    "parameter_server, ringmaster": {"strategy": "ringmaster"},
}
"""The rows of the printed table by title, each with the options of its algorithm."""


class LearningRun(NamedTuple):
    """A run for one row of the table.

    ``task`` is the configuration's name, and ``rate`` is a multiple of the configuration's learning rate.
    """

    task: str
    row: str
    rate: float
    seed: int

    def source(self) -> str:
        return f"learning/{self.task}"

    def overrides(self) -> tuple[str, ...]:
        rate = load_config(self.source(), ()).optimizer.lr * self.rate
        changes = {"algorithm.name": self.row.partition(",")[0], "optimizer.lr": rate, "seed": self.seed}
        changes |= {f"algorithm.{name}": value for name, value in ROWS[self.row].items()}
        return tuple(f"{key}={value!r}".replace("'", '"') for key, value in changes.items())

    def config(self) -> Config:
        return load_config(self.source(), self.overrides())

    def ranks(self) -> int:
        config = self.config()
        missing = RANKS - workers_of(config.algorithm_class, config.algorithm_options, RANKS)
        return RANKS + missing

    def spec(self) -> RunSpec:
        return RunSpec(self.source(), self.overrides(), self.ranks(), SIMULATED, NETWORK, compute=COMPUTE)


def rows_of(runs: dict[LearningRun, Run]) -> Iterator[list]:
    """Yield the rows of the table: the best learning rate, its loss, and the difference from the loss of all-reduce."""
    found: dict[str, dict[float, list[Run]]] = {}
    for planned, run in runs.items():
        found.setdefault(planned.row, {}).setdefault(planned.rate, []).append(run)
    best = {}
    for name, by_rate in found.items():
        losses = {rate: np.array([value(run) for run in seeds]) for rate, seeds in by_rate.items()}
        at = min(losses, key=lambda rate: losses[rate].mean())
        best[name] = at, losses[at], by_rate[at][0]
    whole = best["ring_allreduce"][1].mean()
    for name, (rate, losses, run) in best.items():
        spread = f" ({losses.min():.3f} to {losses.max():.3f})" if losses.size > 1 else ""
        sent = int(run.traffic["sent"].sum()) / 1e6
        yield [name, f"{rate:g}", f"{losses.mean():.3f}{spread}", f"{losses.mean() / whole - 1:+.1%}", f"{sent:.0f}"]


def value(run: Run) -> float:
    """Return the final value of a run's test metric; infinity if the run has diverged."""
    found = float(run.attributes[f"final_test_{run.attributes['metric']}"])
    return found if math.isfinite(found) else math.inf


def main() -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["gpt", "cnn"])
    parser.add_argument(
        "--rates", nargs="+", type=float, default=RATES, metavar="SHARE",
        help="learning rates, as multiples of the configuration's (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds of each row (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[], metavar="ROW", help="rows; all by default")
    parser.add_argument("--out", type=Path, default=Path("results/learning"), metavar="FOLDER")
    add_workers(parser)
    options = parser.parse_args()
    names = list(dict.fromkeys(["ring_allreduce", *(options.rows or ROWS)]))
    planned = [
        LearningRun(options.task, name, rate, seed)
        for name in names
        for rate in options.rates
        for seed in range(options.seeds)
    ]
    try:
        runs = KeptRuns(options.out, options.workers, lambda spec, cpu: RUN_SECONDS).make_all(planned)
    except Unfinished as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    headers = ["method", "learning rate / the configuration's", "loss", "against all-reduce", "MB sent"]
    print(tabulate(rows_of(runs), headers=headers, tablefmt="pipe", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
