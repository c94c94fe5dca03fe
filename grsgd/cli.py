"""The command line: ``grsgd train | simulate | calibrate | report | plot | load | data | algorithms``."""

import argparse
import errno
import os
import secrets
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from grsgd.startup import StartUp, importing
from grsgd.text import printable
from grsgd.watchdog import PASSING_ON_SECONDS, rank, within

WARNINGS = 4
"""How many warnings of a run are printed."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a run that failed, 2 for wrong input, 130 after Ctrl-C or SIGTERM
    (launchers have exit codes of their own)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--network" in arguments[:-1]:  # argparse takes a value such as -1gbit,50us for an option
        at = arguments.index("--network")
        arguments[at : at + 2] = [f"--network={arguments[at + 1]}"]
    options = parser().parse_args(arguments)
    try:
        import tqdm  # noqa: F401  reads the variables of its own as it is imported
    except ValueError as error:
        names = ", ".join(name for name in os.environ if name.startswith("TQDM_"))
        return fail(f"{names}: {error}")
    with suppress(AttributeError):  # a stand-in for the terminal
        sys.stdout.reconfigure(errors="replace")  # it may not know a dash
    try:
        code = options.command(options)
        sys.stdout.flush()
        return code
    except OSError as error:
        nowhere = error.filename is None and error.errno in NO_ROOM and options.command not in (train, calibrate)
        if not (nowhere or isinstance(error, BrokenPipeError)):  # one that fails on a rank has to end the job
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of a pipe, such as `head`, has seen enough
            return 0
        fail(f"the output cannot be written: {error.strerror}")
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="grsgd", description=__import__("grsgd").__doc__)
    top.add_argument("--version", action="version", version=__import__("grsgd").__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(function, **kwargs):
        sub = commands.add_parser(function.__name__, help=function.__doc__.splitlines()[0], **kwargs)
        sub.set_defaults(command=function)
        return sub

    def configured(function):
        sub = command(function)
        sub.add_argument("config", metavar="CONFIG.toml")
        sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as optimizer.lr=0.05")
        sub.add_argument("--data-dir", metavar="DIR", help="folder with the data sets; same as --set data.dir=DIR")
        return sub

    sub = configured(train)
    sub.add_argument("--out", metavar="FILE.h5", help="run file (default: results/ALGORITHM-TIME.h5)")
    sub.add_argument("--verbose", action="store_true", help="print where the time before the first step went")
    sub = configured(simulate)
    sub.add_argument("--out", metavar="FILE.h5", help="run file (default: results/ALGORITHM-TIME.h5)")
    sub.add_argument("--ranks", type=int, default=4, metavar="N", help="(default: %(default)s)")
    sub.add_argument("--network", metavar="RATE,LATENCY", help="such as 25gbit,20us (default: 1gbit,50us)")
    sub.add_argument(
        "--topology",
        default="switch",
        metavar="switch|shared|FILE.toml",
        help="a switch with a port a rank, one shared medium, or a file (default: %(default)s)",
    )
    sub.add_argument(
        "--compute",
        metavar="TIME",
        help="of a step: constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, or measured (default: the "
        "topology file's, or flops:1e10)",
    )
    sub.add_argument("--timing-only", action="store_true", help="compute no gradients: times and traffic alone")
    sub = configured(calibrate)
    sub.add_argument("--out", default="network.toml", metavar="FILE.toml", help="(default: %(default)s)")
    sub.add_argument("--steps", type=int, default=30, metavar="N", help="of training (default: %(default)s)")
    sub = command(report)
    sub.add_argument("files", nargs="+", metavar="FILE.h5")
    sub.add_argument(
        "--group", action="store_true", help="one row for runs that differ in the seed alone: median (range)"
    )
    sub = command(plot)
    sub.add_argument("files", nargs="+", metavar="FILE.h5")
    sub.add_argument(
        "-o", "--out", default="runs.png", metavar="FIG", help="a .png, .pdf or .svg file (default: %(default)s)"
    )
    sub = command(load)
    sub.add_argument("--ranks", type=int, required=True, metavar="N")
    sub = command(data)
    sub.add_argument("action", choices=("list", "fetch"))
    sub.add_argument("name", nargs="?", help="data set to fetch")
    sub.add_argument(
        "--data-dir", default="data", metavar="DIR", help="folder with the data sets (default: %(default)s)"
    )
    command(algorithms)
    return top


def train(options) -> int:
    """train on all ranks of the job: mpiexec -n 4 python -m grsgd train CONFIG.toml"""
    from grsgd.interruption import Interruption

    with Interruption(not_yet_training):  # torch takes seconds to import
        return train_on_all_ranks(options)


def not_yet_training(reason: str):
    """A signal has come before MPI has started, or after the run: end this process, in the thread that knows of it."""
    if rank() in (None, "0"):
        print(f"\ngrsgd: {reason} outside of training", file=sys.stderr, flush=True)
    time.sleep(PASSING_ON_SECONDS)
    os._exit(130)


def train_on_all_ranks(options) -> int:
    start_up = StartUp(options.verbose)
    with importing():
        from grsgd import config as configuration
        from grsgd import launch
        from grsgd.rescue import path_of
        from grsgd.results import RunFileError
        from grsgd.run import run
    start_up.passed("imports")

    try:
        mpi = launch.world()
    except launch.UsageError as error:
        return fail(error)
    launch.abort_on_error(mpi)
    try:
        with launch.together(mpi, (configuration.ConfigError, RunFileError)):
            config = load_config(options)
            out = options.out or (default_out(config.algorithm.name) if mpi.rank == 0 else None)
        with within(config.comm.timeout, "telling all ranks the name of the run file"):
            out = Path(mpi.bcast(out))
        stopped, living = run(mpi, config, out, start_up)
    except launch.UsageError as error:
        return fail(error, quiet=mpi.rank != 0)
    if living.rank == 0:
        announce(path_of(out, stopped), stopped)
    regularly, complete = stopped in configuration.ENDS, living.size == mpi.size
    if not (regularly and complete):
        launch.leave(living, exit_code(stopped), complete=complete)
    return 0


def simulate(options) -> int:
    """train in simulated time: any number of ranks, any network, exactly repeatable"""
    with importing():
        from grsgd import config as configuration
        from grsgd.data import DataError
        from grsgd.interruption import EXIT_CODE, as_exceptions
        from grsgd.rescue import path_of
        from grsgd.results import RunFileError
        from grsgd.simulate.driver import Deadlock
        from grsgd.simulate.network import network
        from grsgd.simulate.run import simulate as run

    try:
        if options.ranks < 1:
            raise configuration.ConfigError(f"--ranks {options.ranks}: must be 1 or more")
        config = load_config(options)
        spec = network(options.network, options.topology)
        out = Path(options.out or default_out(config.algorithm.name))
        with as_exceptions():
            stopped = run(config, options.ranks, spec, out, options.compute, options.timing_only)
    except KeyboardInterrupt as interrupt:
        fail(f"{interrupt} while nothing was simulated: there is no run file")
        return EXIT_CODE
    except (configuration.ConfigError, DataError, RunFileError) as error:
        return fail(error)
    except Deadlock as error:
        fail(error)
        return 1
    announce(path_of(out, stopped), stopped)
    return exit_code(stopped)


def exit_code(stopped: str) -> int:
    """By the reason why a run ended."""
    from grsgd.config import ENDS
    from grsgd.interruption import EXIT_CODE, REASONS

    return 0 if stopped in ENDS else EXIT_CODE if stopped in REASONS.values() else 1


def calibrate(options) -> int:
    """measure computing, latency and bandwidth here, for simulate --topology; alone or under mpiexec"""
    import shlex

    with importing():
        from grsgd import calibrate as calibration
        from grsgd import launch
        from grsgd.config import ConfigError
        from grsgd.results import RunFileError, check_writable

    try:
        mpi = launch.world()
    except launch.UsageError as error:
        return fail(error)
    launch.abort_on_error(mpi)
    try:
        with launch.together(mpi, (ConfigError, RunFileError)):
            if options.steps < 2:
                raise ConfigError(f"--steps {options.steps}: must be 2 or more")
            config = load_config(options)
            if mpi.rank == 0:
                check_writable(options.out)
        measured = calibration.calibrate(mpi, config, options.steps)
    except launch.UsageError as error:
        return fail(error, quiet=mpi.rank != 0)
    except KeyboardInterrupt:
        os._exit(130)
    if mpi.rank == 0:
        command = ["grsgd", "calibrate", options.config]
        for setting in options.set:
            command += ["--set", setting]
        command += ["--data-dir", options.data_dir] if options.data_dir else []
        command += ["--steps", str(options.steps), "--out", options.out]
        calibration.write(Path(options.out), calibration.network_file(measured, config, shlex.join(command)))
        print(calibration.table(measured), options.out, sep="\n", flush=True)
    return 0


def load_config(options):
    from grsgd import config

    overrides = [*options.set]
    if options.data_dir:
        overrides.append(f"data.dir={options.data_dir!r}")
    return config.load(options.config, overrides)


def announce(out, stopped: str):
    """Say where the run file is, whether the run ended early, what it warns of and what it chose by itself."""
    from grsgd.config import ENDS
    from grsgd.results import load_run

    attributes = load_run(out).attributes
    if "redundancy" in attributes:
        print(attributes["redundancy"], file=sys.stderr, flush=True)
    warnings = attributes.get("warnings", [])
    for warning in warnings[:WARNINGS]:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if len(warnings) > WARNINGS:
        print(f"warning: {len(warnings) - WARNINGS} more in {out}", file=sys.stderr, flush=True)

    if stopped in ENDS:
        print(out, flush=True)
    else:
        print(f"{out}: stopped early: {stopped}", file=sys.stderr, flush=True)


def default_out(algorithm: str) -> str:
    """A name that no other run has; raises RunFileError."""
    from grsgd.results import RunFileError

    try:
        Path("results").mkdir(exist_ok=True)
    except OSError as error:
        raise RunFileError(f"results: {error.strerror}: name another file with --out") from None
    return f"results/{algorithm}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.h5"


def report(options) -> int:
    """print a table of runs"""
    from grsgd.report import report as table
    from grsgd.results import RunFileError

    try:
        print(table(options.files, group=options.group))
    except RunFileError as error:
        return fail(error)
    return 0


def plot(options) -> int:
    """draw runs: accuracy over time and samples, bytes sent, where the time went"""
    os.environ.pop("MPLBACKEND", None)  # for windows; there are none here, and an unknown one would be an error
    from grsgd.figures import plot as draw
    from grsgd.results import RunFileError

    try:
        draw(options.files, options.out)
    except RunFileError as error:
        return fail(error)
    print(options.out)
    return 0


def load(options) -> int:
    """print what CSSGD and other schemes send, for every redundancy, counted in two ways"""
    from coding.load_table import load_table

    if options.ranks < 1:
        return fail(f"--ranks {options.ranks}: must be 1 or more")
    print(load_table(options.ranks))
    return 0


def data(options) -> int:
    """list the data sets, or fetch one"""
    from tabulate import tabulate

    from grsgd.data import NAMES, DataError, status
    from grsgd.data.fetch import fetch

    if options.action == "list":
        rows = status(options.data_dir)
        print(tabulate(rows, headers=rows[0]._fields, tablefmt="pipe"))
        return 0
    if options.name not in NAMES:
        return fail(f"data fetch: {options.name or 'no data set named'}: allowed: {', '.join(NAMES)}")
    try:
        print(fetch(options.name, options.data_dir))
    except DataError as error:
        return fail(error)
    return 0


def algorithms(options) -> int:
    """list the algorithms: source, options, defaults"""
    from grsgd.algorithms import ALGORITHMS

    for name, algorithm in sorted(ALGORITHMS.items()):
        kind = "synchronous" if algorithm.synchronous else "asynchronous"
        print(f"{name} ({kind})\n    {algorithm.__doc__.splitlines()[0].strip(' :')}\n    source: {algorithm.paper}")
        for option, field in algorithm.Options.model_fields.items():
            print(f"    {option} = {field.default!r}: {field.description} [{allowed(algorithm.Options, option)}]")
        print()
    return 0


def allowed(options, name: str) -> str:
    """What values an option takes, in words, from its JSON schema."""
    schema = options.model_json_schema()["properties"][name]
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    words = []
    for kind in kinds:
        if "enum" in kind:
            words.append(" | ".join(kind["enum"]))
            continue
        bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
        words.append(" ".join([kind["type"], *(f"{sign} {kind[key]}" for key, sign in bounds.items() if key in kind)]))
    return " or ".join(words)


def fail(error, quiet: bool = False) -> int:
    if not quiet:
        print(f"grsgd: error: {printable(str(error))}", file=sys.stderr, flush=True)
    return 2
