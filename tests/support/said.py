"""Function that returns the lines which a command has printed to stderr."""


def complaint(capsys) -> str:
    """Return the text printed to stderr since the last call, without the lines that name the imported code of grsgd."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("grsgd: imports "))
