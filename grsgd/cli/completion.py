"""Command ``grsgd completion``, which prints a shell script for tab completion, made from the parser of all
commands."""

import argparse

from grsgd.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
FILES, FOLDERS = ("FILE", "FIG", "CONFIG", ".pt", ".h5", ".py"), ("DIR", "FOLDER")
"""Parts of the metavars (names of arguments in argparse's help) by which paths are recognised. A metavar with a text in
`FILES` stands for the path of a file, and a metavar with a text in `FOLDERS` for the path of a folder."""


def completion(options) -> int:
    """print the script that lets bash, zsh or fish complete commands with the Tab key"""
    try:
        import shtab
    except ImportError:
        raise UsageError("completion: the Python package shtab is not installed: pip install shtab") from None
    parser = options.make_parser()
    mark(parser, words())
    print(shtab.complete(parser, options.shell))
    return 0


def words() -> dict[tuple[str, str], list[str]]:
    """Return a dictionary from (command, metavar of an argument) to the values that this argument may have."""
    from grsgd.algorithms import ALGORITHMS
    from grsgd.config import Config
    from grsgd.data import NAMES

    return {
        ("algorithms", "NAME"): sorted(ALGORITHMS),
        ("config", "KEY"): list(Config.model_fields),
        ("data", "NAME"): list(NAMES),
    }


def mark(parser: argparse.ArgumentParser, words: dict[tuple[str, str], list[str]], command: str = ""):
    """Set the attribute ``complete`` of each argument of ``parser`` and of its commands. By this attribute shtab
    completes the values of the argument."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                mark(sub, words, name)
            continue
        metavar = str(action.metavar or action.dest.upper())
        if found := words.get((command, metavar)):
            action.complete = shtab.cmd(f"printf '%s\\n' {' '.join(found)}")
        elif any(part in metavar for part in FILES):
            action.complete = shtab.FILE
        elif any(part in metavar for part in FOLDERS):
            action.complete = shtab.DIRECTORY
