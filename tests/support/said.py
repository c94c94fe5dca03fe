"""The lines that a command has printed to stderr."""


def complaint(capsys) -> str:
    """Return the text printed to stderr since the last call, except the lines that name the imported code."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("grsgd: imports "))
