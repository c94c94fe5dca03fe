"""The testbed held against what it was asked for, and simulated time against the clock::

    python -m experiments.validation                                      # what ``make validate-simulator`` does; root
    python -m experiments.validation --hosts 8 --cpu 0.25 --rate 50mbit --algorithm grsgd --algorithm mine.py:Mine

First the links of a testbed and its slow hosts are measured (``rates``). Then every algorithm trains on one and is
simulated: in each of three rounds ``grsgd calibrate`` measures computing, latency and bandwidth there, and then every
algorithm trains there and is simulated with these figures. Medians are compared, because the speed of a machine drifts.
Time per step is that of ``experiments.scaling``: n / (steps per second of all ranks). Ends with exit code 1 if a
simulated one is off by more than 15 %, or the testbed by more than is printed. Beside it stands the share of the time
that ranks wait, measured and simulated. All-reduces by MPI itself cannot be simulated, and are left out.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from experiments.batch import Calibration, MpiHost, Training, make_runs
from experiments.cache import Unfinished
from experiments.options import variants
from experiments.validation import rates
from grsgd import config
from grsgd.algorithms import ALGORITHMS
from grsgd.runs.measures import seconds_per_step, waiting_share
from grsgd.runs.run_file import load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate
from grsgd.testbed.hosts import Testbed, TestbedError, fair_share

PROGRAM = "python -m experiments.validation"
BASE = Path(__file__).with_name("base.toml")
TOLERANCE = 0.15
SHARE_OF_CORES = 0.8
"""What a host has of its fair part of the cores; the rest is for the kernel, which is the network."""
TIMEOUT = 180
"""Seconds for one job; one that takes longer hangs."""
LIBRARY_ALLREDUCE = 'algorithm.variant="mpi"'
"""Not simulated: only the library knows what it does."""


class Variant(NamedTuple):
    """One line of the table: an algorithm, and overrides that make it another one than its defaults do."""

    algorithm: str
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its files."""
        return "-".join(re.findall(r"[\w.]+", " ".join((self.algorithm, self.options_text))))

    @property
    def options_text(self) -> str:
        return ", ".join(option.removeprefix("algorithm.").replace('"', "") for option in self.options)

    def overrides(self) -> list[str]:
        return [f"algorithm.name={json.dumps(self.algorithm)}", *self.options]

    def load(self) -> config.Config:
        return config.load(BASE, self.overrides())


def variants_of(algorithms: Iterable[str], ranks: int) -> list[Variant]:
    """Return all variants of these algorithms that can be simulated on so many ranks; says which are left out.

    Raises ConfigError for an algorithm that there is not.
    """
    found = []
    for variant in (Variant(name, options) for name in algorithms for options in variants(BASE, name)):
        if LIBRARY_ALLREDUCE in variant.options:
            continue
        try:
            variant.load().check_ranks(ranks)
        except config.ConfigError as error:
            print(f"left out: {error}", file=sys.stderr)
        else:
            found.append(variant)
    return found


class Times(NamedTuple):
    """Times of the steps of a run."""

    step: float
    """Seconds per step."""
    waiting: float
    """Share of the time in which ranks wait for others."""

    @classmethod
    def of(cls, file: str | Path) -> "Times":
        run = load_run(file)
        return cls(seconds_per_step(run), waiting_share(run))


def simulated(variant: Variant, ranks: int, topology: Path, out: Path) -> Times:
    """Train in simulated time."""
    loaded = variant.load()
    simulate(loaded, ranks, network(str(topology)), out, timing_only=not loaded.traits.depends_on_values)
    return Times.of(out)


def one_round(testbed: Testbed, variants: list[Variant], folder: Path, bar: tqdm) -> dict[Variant, tuple[Times, Times]]:
    """Calibrate, then measure and simulate every variant. Raises Unfinished."""
    topology = folder / "network.toml"
    mpi_host = MpiHost(testbed.mpiexec, testbed.without_cpu_limit)
    list(make_runs(mpi_host, testbed.count, [Calibration(str(BASE), [], str(topology), steps=100)], TIMEOUT))
    runs = [Training(str(BASE), variant.overrides(), str(folder / f"{variant.name}.h5")) for variant in variants]
    for _ in make_runs(mpi_host, testbed.count, runs, TIMEOUT):
        bar.update()
    return {
        variant: (
            Times.of(run.out),
            simulated(variant, testbed.count, topology, folder / f"{variant.name}-simulated.h5"),
        )
        for variant, run in zip(variants, runs, strict=True)
    }


def medians(times: Iterable[Times]) -> Times:
    return Times(*(statistics.median(values) for values in zip(*times, strict=True)))


def parse_arguments() -> argparse.Namespace:
    """Also sets ``variants``; ends the program where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4, help="number of hosts, one rank each (default: %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="rate of each host's link (default: %(default)s)")
    parser.add_argument("--cpu", type=float, help="cores of each host (default: most of a fair part)")
    parser.add_argument(
        "--algorithm",
        action="append",
        metavar="NAME",
        help="name of an algorithm, or FILE.py:CLASS; may be given several times (default: all that are registered)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/validation"), help="folder (default: %(default)s)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds is 1 or more")
    try:
        options.variants = variants_of(options.algorithm or sorted(ALGORITHMS), options.hosts)
    except config.ConfigError as error:
        parser.error(str(error))
    if options.cpu is None:
        options.cpu = SHARE_OF_CORES * fair_share(max(options.hosts, 1))
    return options


def main() -> int:
    options = parse_arguments()
    rounds = []
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        checks = list(tqdm(rates.checks(options.out, BASE), desc="the testbed itself"))
        print(checks_table(checks))
        with (
            Testbed(options.hosts, options.rate, options.cpu) as testbed,
            tqdm(desc="runs", total=options.rounds * len(options.variants)) as bar,
        ):
            for number in range(options.rounds):
                folder = options.out / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                rounds.append(one_round(testbed, options.variants, folder, bar))
    except (TestbedError, Unfinished, subprocess.SubprocessError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    pairs = {
        variant: tuple(medians(times) for times in zip(*(one[variant] for one in rounds), strict=True))
        for variant in options.variants
    }
    print(times_table(pairs))
    close = sum(abs(error_of(*times)) <= TOLERANCE for times in pairs.values())
    within = f"{close} of {len(pairs)} simulated times are within {TOLERANCE:.0%}"
    print(f"\n{testbed}, {options.cpu:g} cores each; medians of {options.rounds} rounds: {within}.")
    return 0 if close == len(pairs) and all(check.holds for check in checks) else 1


def error_of(measured: Times, simulated: Times) -> float:
    """Return how far a simulated step is from the measured one, as a share of that."""
    return simulated.step / measured.step - 1


def checks_table(checks: list[rates.Check]) -> str:
    return tabulate(
        [(check.what, *(f"{share:.2f}" for share in check[1:]), "" if check.holds else "off") for check in checks],
        headers=["share of what was asked for", "found", "min", "max", ""],
        tablefmt="pipe",
        disable_numparse=True,
    )


def times_table(pairs: dict[Variant, tuple[Times, Times]]) -> str:
    """Return the table of measured and simulated times, a row per variant."""
    rows = []
    for variant, both in pairs.items():
        steps, waits = (f"{1e3 * times.step:.1f}" for times in both), (f"{times.waiting:.0%}" for times in both)
        rows.append((variant.algorithm, variant.options_text, *steps, f"{error_of(*both):+.1%}", *waits))
    headers = ["algorithm", "options", "measured [ms per step]", "simulated [ms per step]", "error"]
    headers += ["wait, measured", "wait, simulated"]
    return tabulate(rows, headers=headers, tablefmt="pipe", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
