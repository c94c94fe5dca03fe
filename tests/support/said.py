"""Lines that a command has printed to stderr."""


def complaint(capsys) -> str:
    """Return what was printed to stderr since the last call, but for the lines that say which code is imported."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("grsgd: imports "))
