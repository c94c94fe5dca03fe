"""Command ``grsgd demo`` for new users, which trains with three algorithms on a data set in the package grsgd."""

import shutil
from argparse import Namespace
from pathlib import Path

from grsgd.cli.arguments import check_at_least
from grsgd.cli.child import OVERDUE, in_a_process
from grsgd.cli.outcome import print_error
from grsgd.errors import UsageError
from grsgd.job.foreign_launchers import check_alone

EXAMPLES = Path(__file__).parents[1] / "demo"
"""Folder of example configurations and scripts. In a clone of the repository this folder of examples is a link to
experiments/demo."""
ALGORITHMS = ("ring_allreduce", "dpsgd", "grsgd")


def demo(options: Namespace) -> int:
    """train MNIST-5k with three algorithms, and show a table and a plot: nothing is downloaded

    Return 0 if all trainings are complete and the table and the plot were made, else the exit code of the first command
    that failed. Raises UsageError for wrong options.
    """
    check_alone("demo")
    if options.copy:
        copy(Path(options.copy))
        return 0
    check_at_least("-n", options.ranks, 1)
    folder = Path(options.out)
    create(folder)
    files = [str(folder / f"demo-{name}.h5") for name in ALGORITHMS]
    for name, file in zip(ALGORITHMS, files, strict=True):
        print(f"{name} on {options.ranks} ranks", flush=True)
        if code := train(name, file, options):
            return code
    return show(files, str(folder / "demo.png"), options)


def train(name: str, file: str, options: Namespace) -> int:
    """Train the example configuration ``name`` on ``options.ranks`` ranks, for at most ``options.timeout`` seconds.
    Return the exit code of ``grsgd run``."""
    command = ["run", "-n", str(options.ranks), str(EXAMPLES / f"{name}.toml"), "--out", file]
    if options.epochs is not None:
        command += ["--set", f"train.epochs={options.epochs}"]
    code = in_a_process(command, options.timeout)
    if code == OVERDUE:
        print_error(f"demo: {name} was killed after {options.timeout:g} s: --timeout sets another limit")
    return code


def show(files: list[str], picture: str, options: Namespace) -> int:
    """Print the table of the runs in ``files``, draw the plot and print its path ``picture``. Return the exit code of
    the command that failed, or 0 if no command failed."""
    for heading, words in (("", ["report", *files]), ("\nplot:", ["plot", *files, "-o", picture])):
        if heading:
            print(heading)
        command = options.make_parser().parse_args(words)
        if code := command.command(command):
            return code
    return 0


def copy(target: Path):
    """Copy the example configurations and scripts to the new folder ``target``, and print its path. Raises UsageError
    if ``target`` exists, or if copying fails."""
    if target.exists() and target.resolve() == EXAMPLES.resolve():
        raise UsageError(f"--copy {target}: is the folder of the examples in this clone: leave --copy out")
    if target.exists():
        raise UsageError(f"--copy {target}: exists already: name a new folder")
    try:
        shutil.copytree(EXAMPLES, target, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise UsageError(f"--copy {target}: {error.strerror or error}") from error
    print(target)


def create(folder: Path):
    """Create the folder of the demo's results. Raises UsageError if the folder cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error
