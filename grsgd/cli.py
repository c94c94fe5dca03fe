"""The command line: ``grsgd train | report | plot | data | algorithms``."""

import argparse
import os
import sys
from datetime import datetime
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a run that failed, 2 for wrong input, 130 after Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        return options.command(options)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="grsgd", description=__import__("grsgd").__doc__)
    top.add_argument("--version", action="version", version=__import__("grsgd").__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(function, **kwargs):
        sub = commands.add_parser(function.__name__, help=function.__doc__.splitlines()[0], **kwargs)
        sub.set_defaults(command=function)
        return sub

    sub = command(train)
    sub.add_argument("config", metavar="CONFIG.toml")
    sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as optimizer.lr=0.05")
    sub.add_argument("--data-dir", metavar="DIR", help="folder with the data sets; same as --set data.dir=DIR")
    sub.add_argument("--out", metavar="FILE.h5", help="run file (default: results/ALGORITHM-TIME.h5)")
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
    from grsgd import config as configuration
    from grsgd import launch
    from grsgd.run import INTERRUPTED, run

    try:
        mpi = launch.world()
    except launch.UsageError as error:
        return fail(error)
    launch.abort_on_error(mpi)
    try:
        with launch.together(mpi, (configuration.ConfigError,)):
            overrides = [*options.set]
            if options.data_dir:
                overrides.append(f"data.dir={options.data_dir!r}")
            config = configuration.load(options.config, overrides)
        out = options.out or mpi.bcast(default_out(config.algorithm.name) if mpi.rank == 0 else None)
        stopped = run(mpi, config, Path(out))
    except launch.UsageError as error:
        return fail(error, quiet=mpi.rank != 0)
    early = stopped not in configuration.ENDS
    if mpi.rank == 0:
        print(
            f"{out}: stopped early: {stopped}" if early else out, file=sys.stderr if early else sys.stdout, flush=True
        )
    if early:
        launch.leave(mpi, 130 if stopped == INTERRUPTED else 1)
    return 0


def default_out(algorithm: str) -> str:
    Path("results").mkdir(exist_ok=True)
    return f"results/{algorithm}-{datetime.now():%Y%m%d-%H%M%S}.h5"


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
    from grsgd.figures import plot as draw
    from grsgd.results import RunFileError

    try:
        draw(options.files, options.out)
    except RunFileError as error:
        return fail(error)
    print(options.out)
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
        print(f"grsgd: error: {error}", file=sys.stderr, flush=True)
    return 2
