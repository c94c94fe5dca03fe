"""Entry point of the command line: ``grsgd train | simulate | calibrate | report | plot | ...``."""

import errno
import os
import sys
from contextlib import suppress

from grsgd.cli.outcome import print_error
from grsgd.cli.parser import make_parser
from grsgd.errors import SetupError, UsageError
from grsgd.job import words
from grsgd.mpi_environment import flush

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
WITH_VALUE = ("-n", "-np", "--hosts", "--restarts", "--launcher", "--bind")
"""Names of the options of ``grsgd run`` after which the next argument is the option's value."""
RENAMED_COMMANDS = {"load": "coding-cost"}


def main(arguments: list[str] | None = None) -> int:
    """Run the command that ``arguments`` name (by default sys.argv), and return its exit code.

    The exit code is 0 after success, 1 for a run that failed, 2 for wrong input, and 130 after Ctrl-C or SIGTERM. A
    launcher such as mpiexec may replace the exit code of the command by another code.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    open_streams()
    if arguments[:1] == ["testbed"]:  # argparse would drop the argument `--`, which stands before the testbed's command
        from grsgd.testbed.__main__ import main as testbed

        return testbed(arguments[1:])
    try:
        options = parse(arguments)
    except UsageError as error:
        print_error(error)
        return 2
    with suppress(AttributeError):  # sys.stdout may be an object without reconfigure()
        sys.stdout.reconfigure(errors="replace")  # print "?" for characters that the terminal's encoding lacks
    if options.command is None:
        make_parser().print_help()
        return 2
    if options.on_ranks:
        words.begin()
    try:
        code = options.command(options)
        flush()
        if options.on_ranks and code == 0:
            words.leave(words.ENDED)
        return code
    except UsageError as error:
        # do not only print the error, because an error on one rank must end the whole job
        if options.on_ranks and not isinstance(error, SetupError):
            raise
        if getattr(error, "is_printed", True):
            print_error(error)
        return 2
    except OSError as error:
        return end_of_output(error, options.on_ranks)


def open_streams():
    """Open /dev/null in place of stdout or stderr if this process was started without the stream (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))


def parse(arguments: list[str]):
    """Return the options of the command line ``arguments``, as argparse parses them. Raises UsageError for unknown
    options, and for the old name of a renamed command."""
    if arguments and arguments[0] in RENAMED_COMMANDS:
        raise UsageError(f"{arguments[0]}: is now called {RENAMED_COMMANDS[arguments[0]]}")
    if arguments[:1] == ["run"]:
        arguments = with_python(arguments)
    if arguments[:1] == ["report"]:
        arguments = with_way_to_group(arguments)
    if arguments[:1] in (["simulate"], ["replay"]) and "--network" in arguments[:-1]:
        at = arguments.index("--network")  # argparse would read a value such as -1gbit,50us as an option
        arguments = [*arguments[:at], f"--network={arguments[at + 1]}", *arguments[at + 2 :]]
    return make_parser().parse_args(arguments)


def with_way_to_group(arguments: list[str]) -> list[str]:
    """Return the arguments of `grsgd report` with ``--group WAY`` changed to ``--group=WAY``. Without "=", argparse
    would read the first file as WAY if the user leaves WAY out."""
    if "--group" not in arguments:
        return arguments
    at = arguments.index("--group")
    named = [word for word in arguments[at + 1 : at + 2] if word in ("median", "mean")]
    return [*arguments[:at], f"--group={(named or ['median'])[0]}", *arguments[at + 1 + len(named) :]]


def with_python(arguments: list[str]) -> list[str]:
    """Return the arguments of `grsgd run` with ``python`` inserted before ``-m``, because argparse would read ``-m`` as
    an option."""
    for place, word in enumerate(arguments[1:], 1):
        if word == "-m":
            return [*arguments[:place], "python", *arguments[place:]]
        if not word.startswith("-") and arguments[place - 1] not in WITH_VALUE:
            break  # the options of `grsgd run` end before ``word``, which is the configuration or the script
    return arguments


def end_of_output(error: OSError, on_ranks: bool) -> int:
    """Return the exit code of a command whose writing to stdout has raised ``error``. Raise ``error`` again unless its
    cause is a closed pipe or, for a command without ranks, a full or broken disk."""
    full = error.filename is None and error.errno in NO_ROOM and not on_ranks
    if not (full or isinstance(error, BrokenPipeError)):  # an error on one rank must end the whole job
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # the program that reads the pipe, such as `head`, has closed the pipe
        return 0
    print_error(f"the output cannot be written: {error.strerror}")
    return 1
