"""The testbed held against what it was asked for, and simulated time against the clock::

    python -m experiments.validation                                      # what `make validate-simulator` does; root
    python -m experiments.validation --hosts 8 --cpu 0.25 --rate 50mbit --only grsgd,dpsgd

First the links of a testbed and its slow hosts are measured (`rates`). Then every algorithm trains on one and is
simulated: in each of three rounds `grsgd calibrate` measures computing, latency and bandwidth there, and then every
algorithm trains there and is simulated with these figures. Medians are compared, because the speed of a machine drifts.
Time per step is that of `experiments.scaling`: n / (steps per second of all ranks). Ends with exit code 1 if a
simulated one is off by more than 15 %, or the testbed by more than is printed. Beside it stands the share of the time
that ranks wait, measured and simulated. All-reduces by MPI itself cannot be simulated, and are left out.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from experiments.batch import Calibration, Place, Training, make
from experiments.cache import Unfinished
from experiments.testbed.hosts import Testbed, TestbedError, fair_part
from experiments.validation import rates
from grsgd import config
from grsgd.algorithms import ALGORITHMS
from grsgd.report import seconds_per_step, waiting_share
from grsgd.results import load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate
from grsgd.strategies import STRATEGIES

BASE = Path(__file__).with_name("base.toml")
TOLERANCE = 0.15
PART = 0.8
"""Of a fair part of the cores is what a host has: the rest is for the kernel, which is the network."""
TIMEOUT = 180
"""Seconds for one job; one that takes longer hangs."""
VARIANTS = {
    "cssgd": [f'scheme="{scheme}"' for scheme in ("coded", "uncoded", "grouped-direct", "grouped-rs")],
    "easgd": ['centre="server"', 'centre="allreduce"'],
    "gossip": [*(f'mode="{mode}"' for mode in ("pair", "push", "pull")), "adaptive=true"],
    "parameter_server": [f'strategy="{strategy}"' for strategy in STRATEGIES],
    "ring_allreduce": [f'variant="{variant}"' for variant in ("ring", "halving-doubling", "tree")],
}
"""Options that make one algorithm several; of the others the defaults."""


class Cell(NamedTuple):
    """One line of the table."""

    algorithm: str
    option: str

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.algorithm, self.option.replace('"', "").replace("=", "-"))))

    def overrides(self) -> list[str]:
        return [f'algorithm.name="{self.algorithm}"'] + ([f"algorithm.{self.option}"] if self.option else [])


class Times(NamedTuple):
    """What a run says of its steps."""

    step: float
    """Seconds per step."""
    waiting: float
    """Share of the time in which ranks wait for others."""

    @classmethod
    def of(cls, file: str | Path) -> "Times":
        run = load_run(file)
        return cls(seconds_per_step(run), waiting_share(run))


def simulated(cell: Cell, ranks: int, topology: Path, out: Path) -> Times:
    """The cell in simulated time."""
    timing_only = "adaptive=true" not in cell.option  # which decides by the values of the model
    simulate(config.load(BASE, cell.overrides()), ranks, network(None, str(topology)), out, timing_only=timing_only)
    return Times.of(out)


def one_round(testbed: Testbed, cells: list[Cell], folder: Path, bar: tqdm) -> dict[Cell, tuple[Times, Times]]:
    """Calibrate, then measure and simulate every cell. Raises Unfinished."""
    topology = folder / "network.toml"
    place = Place(testbed.mpiexec, testbed.unlimited)
    list(make(place, testbed.count, [Calibration(str(BASE), [], str(topology), steps=100)], TIMEOUT))
    runs = [Training(str(BASE), cell.overrides(), str(folder / f"{cell.name}.h5")) for cell in cells]
    for _ in make(place, testbed.count, runs, TIMEOUT):
        bar.update()
    return {
        cell: (Times.of(run.out), simulated(cell, testbed.count, topology, folder / f"{cell.name}-simulated.h5"))
        for cell, run in zip(cells, runs, strict=True)
    }


def medians(times: Iterable[Times]) -> Times:
    return Times(*(statistics.median(values) for values in zip(*times, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.validation", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of each host's link (default: %(default)s)")
    parser.add_argument("--cpu", type=float, help="cores of each host (default: most of a fair part)")
    parser.add_argument("--only", metavar="NAME,...", help="algorithms (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/validation"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else sorted(ALGORITHMS)
    if unknown := [name for name in names if name not in ALGORITHMS]:
        parser.error(f"no algorithm {unknown[0]!r}; there are {', '.join(sorted(ALGORITHMS))}")
    if options.rounds < 1:
        parser.error("--rounds is 1 or more")
    cells = [Cell(name, option) for name in names for option in VARIANTS.get(name, [""])]
    cpu = PART * fair_part(max(options.hosts, 1)) if options.cpu is None else options.cpu
    rounds = []
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        checks = list(tqdm(rates.checks(options.out, BASE), desc="the testbed itself"))
        print(tabulate(
            [(check.what, *(f"{share:.2f}" for share in check[1:]), "" if check.holds else "off") for check in checks],
            headers=["of what was asked for", "found", "least", "most", ""], tablefmt="pipe", disable_numparse=True,
        ))  # fmt: skip
        with (
            Testbed(options.hosts, options.rate, cpu) as testbed,
            tqdm(desc="runs", total=options.rounds * len(cells)) as bar,
        ):
            for number in range(options.rounds):
                folder = options.out / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                rounds.append(one_round(testbed, cells, folder, bar))
    except (TestbedError, Unfinished, subprocess.SubprocessError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    rows, off = [], 0
    for cell in cells:
        both = [medians(times) for times in zip(*(one[cell] for one in rounds), strict=True)]
        measured, guessed = (times.step for times in both)
        error = guessed / measured - 1
        off += abs(error) > TOLERANCE
        steps, waits = (f"{1e3 * times.step:.1f}" for times in both), (f"{times.waiting:.0%}" for times in both)
        rows.append((cell.algorithm, cell.option.replace('"', ""), *steps, f"{error:+.1%}", *waits))
    headers = ["algorithm", "options", "measured [ms a step]", "simulated [ms a step]", "error"]
    headers += ["wait, measured", "wait, simulated"]
    print(tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True))
    close = f"{len(rows) - off} of {len(rows)} simulated times are within {TOLERANCE:.0%}"
    print(f"\n{testbed}, {cpu:g} cores each; medians of {options.rounds} rounds: {close}.")
    return 1 if off or not all(check.holds for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
