"""Comparison of the testbed with its specification, and of simulated with measured times of trainings::

    sudo .venv/bin/python -m experiments.validation                       # as ``make validate-simulator``; hours
    sudo .venv/bin/python -m experiments.validation --setting four --rounds 3 --algorithm grsgd --algorithm mine.py:Mine

The program first measures the links and the slow hosts of a testbed (``rates``). After the measurements, every
algorithm trains on each emulated cluster (``settings``), in several rounds. A round begins with a calibration, and
continues with runs that alternate with measurements of the computing time. Each run is simulated from the calibration
of its round. The simulation uses the computing times that were measured just before and just after the run, because
the speed of a machine drifts. The printed errors are medians over the rounds, and their repeatability is estimated
from the rounds (``errors``). All-reduces that MPI itself makes cannot be simulated, and are left out.

Runs and measurements that exist are not made again, so the same command continues after an interruption. The exit code
is 1 if simulated times, or the testbed's rates and speeds, are off by more than the printed limits.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from experiments.arguments import parse_once
from experiments.runner.parallel import Unfinished
from experiments.validation import errors, rates, rounds
from experiments.validation.settings import SETTINGS, EmulatedCluster
from experiments.validation.variant import BASE, Variant, variants_of
from grsgd.algorithms import ALGORITHMS
from grsgd.errors import ConfigError
from grsgd.testbed.hosts import TestbedError

PROGRAM = "python -m experiments.validation"


def main() -> int:
    options = parse_arguments()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        total = options.rounds * sum(len(variants) for variants in options.variants.values())
        missing = sum(
            len(rounds.list_missing(options.out, setting, number, variants))
            for setting, variants in options.variants.items()
            for number in range(options.rounds)
        )
        hours = missing * rounds.SECONDS / 3600
        there = f"{total} runs, of which {total - missing} exist"
        print(f"{there}; the others take about {hours:.1f} hours", flush=True)
        checks = testbed_checks(options.out, is_to_be_used=missing > 0)
        print(checks_table(checks))
        with tqdm(desc="runs", total=missing) as bar:
            for setting, variants in options.variants.items():
                rounds.measure(options.out, setting, variants, options.rounds, bar)
    except (TestbedError, Unfinished, subprocess.SubprocessError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    pairs = [(setting, variant) for setting, variants in options.variants.items() for variant in variants]
    rows = [
        errors.Row(setting, variant, rounds.times(options.out, setting, variant, options.rounds))
        for setting, variant in tqdm(pairs, desc="simulations")
    ]
    text = errors.table(rows)
    (options.out / "table.md").write_text(text + "\n")
    verdicts = errors.verdicts(rows)
    print(text, *verdicts, sep="\n\n")
    return 0 if all(verdicts.values()) and all(check.holds for check in checks) else 1


def parse_arguments() -> argparse.Namespace:
    """Parse and return the command-line arguments, to which ``variants``, a dict by setting, is added.

    Exits with a message if the arguments are wrong.
    """
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.splitlines()[0])
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--setting", choices=names, action="append", help="setting of the testbed; by default all")
    parser.add_argument(
        "--algorithm",
        action="append",
        metavar="NAME",
        help="name of an algorithm, or FILE.py:CLASS; may be given several times (default: all registered ones)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/validation"), help="folder (default: %(default)s)")
    options = parse_once(parser)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    chosen = [setting for setting in SETTINGS if setting.name in (options.setting or names)]
    try:
        options.variants: dict[EmulatedCluster, list[Variant]] = {
            setting: variants_of(options.algorithm or sorted(ALGORITHMS), setting.hosts) for setting in chosen
        }
    except ConfigError as error:
        parser.error(str(error))
    if not all(options.variants.values()):
        parser.error("none of these algorithms can be simulated in every setting")
    return options


def testbed_checks(folder: Path, is_to_be_used: bool) -> list[rates.Check]:
    """Return the checks that compare the testbed with its specification.

    If the testbed will be used, the checks are made now. If the testbed will not be used, the checks of its last use
    are returned, so that deviations at that time are not forgotten. Raises TestbedError.
    """
    if not is_to_be_used and (kept := rates.load_checks(folder)):
        return kept
    found = list(tqdm(rates.measure_checks(folder, BASE), desc="the testbed itself"))
    rates.save_checks(folder, found)
    return found


def checks_table(checks: list[rates.Check]) -> str:
    return tabulate(
        [(check.what, *(f"{share:.2f}" for share in check[1:]), "" if check.holds else "off") for check in checks],
        headers=["share of the requested value", "found", "min", "max", ""],
        tablefmt="pipe",
        disable_numparse=True,
    )


if __name__ == "__main__":
    sys.exit(main())
