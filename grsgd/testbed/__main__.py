"""The command ``grsgd testbed --hosts 4 --rate 100mbit -- mpiexec-arguments``, which runs one job on a temporary
testbed (an emulated cluster)."""

import argparse
import signal
import subprocess
import sys
from contextlib import suppress
from typing import get_args

from tabulate import tabulate

from grsgd.job import words
from grsgd.job.ending import with_parent
from grsgd.job.hearing import LOOK_SECONDS, Hearing, heard_by
from grsgd.job.start import LOST_SECONDS
from grsgd.mpi_environment import job_environment
from grsgd.testbed.hosts import Testbed, TestbedError, clear
from grsgd.testbed.links import Medium

MAX_END_SECONDS = 20.0
"""Seconds for which the testbed waits for the end of a job after a signal. If a job does not end within
`MAX_END_SECONDS`, it is killed."""
LAST_SECONDS = 3.0
"""Seconds for which the testbed waits for the end of the ranks after their launcher (mpiexec) has ended. After
`LAST_SECONDS` the testbed removes its hosts and kills all processes on them."""


def main(args: list[str]) -> int:
    options, arguments = parse(args)
    try:
        if options.clear:
            print("\n".join(clear()))
            return 0
        with Testbed(
            options.hosts, options.rate, options.cpu, dict(options.slow), options.medium, delay=options.delay
        ) as testbed:
            before = testbed.counters()
            hearing = testbed.hearing()
            with words.asked_for() as asked, heard_by(hearing):
                code, line = asked.judged(run(testbed.mpiexec(arguments), hearing), leaves_file=False)
                lost = hearing.conclude() if code else []
            testbed.wait(LAST_SECONDS)
            show(testbed, testbed.counters() - before)
            for problem in filter(None, (lost and f"lost {hearing.in_words(lost)}", line)):
                print(f"testbed: {problem}", file=sys.stderr)
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options of ``grsgd testbed``, which precede ``--`` on the command line."""
    parser = argparse.ArgumentParser(
        prog="grsgd testbed",
        usage="%(prog)s [options] -- mpiexec-arguments",
        description="Run an MPI job over hosts emulated on this machine. Needs Linux, root and Open MPI.",
    )
    parser.add_argument("--hosts", type=int, default=4, help="number of hosts (default: 4)")
    parser.add_argument("--rate", default="100mbit", help="rate of each link, in the units of tc (default: 100mbit)")
    parser.add_argument("--cpu", type=float, help="cores of each host, such as 0.4 (default: no limit)")
    parser.add_argument(
        "--slow",
        type=slow_host,
        action="append",
        default=[],
        metavar="HOST:FACTOR",
        help="a host whose share of the processor is smaller by this factor; may be given again. Without --cpu each "
        "other host has a fair share of the machine's cores",
    )
    parser.add_argument(
        "--medium",
        choices=get_args(Medium),
        default="switched",
        help="switched: each host has its own link to a switch (default); shared: all hosts share one link",
    )
    parser.add_argument(
        "--delay",
        default="0s",
        help="delay of all traffic that leaves a host, such as 2ms (default: none); needs a kernel with netem",
    )
    parser.add_argument(
        "--clear", action="store_true", help="remove testbeds whose process was killed, print their names, and exit"
    )
    return parser


def parse(args: list[str]):
    """Return the options of ``grsgd testbed``, and the arguments of mpiexec, which follow ``--`` on the command
    line."""
    parser = make_parser()
    cut = args.index("--") if "--" in args else len(args)
    options, arguments = parser.parse_args(args[:cut]), args[cut + 1 :]
    if not arguments and not options.clear:
        parser.error("nothing to run: give mpiexec's arguments after `--`, such as `-- -n 4 python -m grsgd train ...`")
    return options, arguments


def slow_host(text: str) -> tuple[int, float]:
    """Return the host's number and its factor from ``text``, a value of the option ``--slow`` such as ``2:4.0``. Raises
    argparse.ArgumentTypeError if ``text`` does not have the form HOST:FACTOR."""
    host, _, factor = text.partition(":")
    try:
        return int(host), float(factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:FACTOR, such as 2:4.0") from None


def run(command: list[str], hearing: Hearing) -> int:
    """Run the job's command line ``command``, and return its exit code. Linux kills the started process if this process
    dies.

    If this process is interrupted, wait at most `MAX_END_SECONDS` for the end of the job, and kill a job that has not
    ended. If a host is lost, end the job and return 1.
    """
    job = subprocess.Popen(command, env=job_environment(), preexec_fn=with_parent())
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return job.wait(LOOK_SECONDS)
            if lost := hearing.look():
                print(f"testbed: {hearing.why(lost)}", file=sys.stderr, flush=True)
                job.terminate()
                end(job, LOST_SECONDS)
                return 1
    except SystemExit:  # at SIGTERM or SIGHUP; at Ctrl-C the terminal itself sends a signal to the job
        job.terminate()
        raise
    finally:
        end(job, MAX_END_SECONDS)


def end(job: subprocess.Popen, seconds: float):
    """Wait at most ``seconds`` for the end of the process ``job``. Kill ``job`` if it has not ended after
    ``seconds``."""
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        job.wait()


def show(testbed: Testbed, counted):
    """Print a table of the bytes that the network interface of each host has sent and received. The bytes include
    traffic at the start and end of the job."""
    cores = [f"{share:.3g}" for share in testbed.cpu.values()] if testbed.cpu else ["-"] * len(testbed.hosts)
    rows = [
        (host, share, *(f"{count / 2**20:.2f}" for count in bytes_of_host))
        for host, share, bytes_of_host in zip(testbed.hosts, cores, counted, strict=True)
    ]
    table = tabulate(rows, headers=["host", "cores", "sent [MiB]", "received [MiB]"], tablefmt="pipe")
    print(f"\n{testbed}; interfaces, the job's start and end included:\n{table}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
