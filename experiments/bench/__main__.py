"""Run the benchmarks; each section (one benchmark) starts its own MPI jobs::

python -m experiments.bench                       # all sections, about a quarter of an hour
python -m experiments.bench allreduce --quick     # one section, a few seconds, to see that it works
python -m experiments.bench --gpu                 # the sections for a GPU, which all ranks share
"""

import argparse
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

from experiments.arguments import add_record, parse_once
from experiments.bench import picture
from experiments.bench.side_by_side import RESULTS, machine, numbers_file
from experiments.figures import record
from grsgd.errors import ConfigError
from grsgd.job.ending import with_parent
from grsgd.mpi_environment import find_mpiexec, job_environment
from grsgd.testbed.hosts import Testbed, TestbedError
from grsgd.training.device import pick_device

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "allreduce": (2, 4),
    "calls": (1,),
    "training": (2,),
    "stand_in": (2,),
    "overhead": (1,),
    "overlap": (2,),
    "wire": (4,),
    "reading": (2,),
    "codec": (1,),
    "compression": (1,),
    "checkpoints": (2,),
    "integrations": (2,),
}
"""The sections of the benchmark, each a module with the section's name, by the numbers of ranks on which it runs."""
LINKS = {"wire": "100mbit"}
"""Sections that run between emulated hosts with one rank each, by the rate of the links."""
GPU_SECTIONS = {"codec": (1,), "compression": (1,), "merges": (1,), "overhead": (1,), "transfers": (2,)}
"""Sections that run on a GPU if ``--gpu`` is given, with their numbers of ranks."""
PICTURE = "bench-allreduce.svg"
"""Name of the SVG file with the figure of all-reduces."""
TIMEOUT = 900
"""Greatest number of seconds that a section of the benchmark may take.

On two cores, a section takes one to three minutes.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description="Speed against other programs.")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--gpu", action="store_true", help=f"run on a GPU; sections {', '.join(GPU_SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="only check that it works; the times mean nothing")
    add_record(parser)
    arguments = parse_once(parser)
    sections = GPU_SECTIONS if arguments.gpu else SECTIONS
    if unknown := set(arguments.sections) - set(sections):
        parser.error(f"unknown section {min(unknown)}; allowed: {', '.join(sections)}")
    if arguments.gpu:
        try:
            pick_device("cuda")
        except ConfigError as error:
            parser.error(str(error))
    print(machine(), flush=True)
    failed = 0
    for section in arguments.sections or sections:
        flags = ["--quick"] * arguments.quick + ["--gpu"] * arguments.gpu
        succeeded = [job(section, ranks, flags) for ranks in sections[section]]
        failed += succeeded.count(False)
        if section == "allreduce" and all(succeeded) and not arguments.quick:
            files = {ranks: ROOT / RESULTS / f"bench-allreduce-seconds-{ranks}.csv" for ranks in sections[section]}
            picture.draw({ranks: picture.read(file) for ranks, file in files.items()}, ROOT / RESULTS / PICTURE)
            print(f"\n{RESULTS / PICTURE}", flush=True)
        if arguments.record and all(succeeded) and not arguments.quick:
            for file in (ROOT / numbers_file(section, ranks, arguments.gpu) for ranks in sections[section]):
                print(record(file), flush=True)
    return int(failed > 0)


def job(section: str, ranks: int, flags: list[str]) -> bool:
    """Run one section of the benchmark on ``ranks`` ranks; return True if the section succeeded."""
    module = [sys.executable, "-m", "mpi4py", "-m", f"experiments.bench.{section}", *flags]
    try:
        with Testbed(ranks, LINKS[section]) if section in LINKS else nullcontext() as testbed:
            if testbed is not None:
                command = testbed.mpiexec(["-n", ranks, *module, f"--link={LINKS[section]}"])
            else:
                command = [find_mpiexec(), "-n", ranks, *module]
            command = [str(argument) for argument in command]
            done = subprocess.run(command, cwd=ROOT, env=job_environment(), timeout=TIMEOUT, preexec_fn=with_parent())
    except TestbedError as error:
        print(f"{section}: left out: {error}", flush=True)
        return True
    except ConfigError as error:
        print(f"{section}: {error}", flush=True)
        return False
    except subprocess.TimeoutExpired:
        print(f"{section} on {ranks} ranks: not done after {TIMEOUT} s", flush=True)
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
