"""Options of a model, a data set or a task: whether a value is of the kind of the default."""

from grsgd.errors import ConfigError


def check_kind(key: str, value, default, whole: bool = False):
    """Raise ConfigError if ``value`` is not of the kind of the option's default: true or false, a number, or a list of
    as many numbers; ``whole``: whole ones. Any other default allows everything."""
    numbers = "whole number" if whole else "number"
    if isinstance(default, bool):
        fits, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        fits, expected = is_number(value, whole), f"a {numbers}"
    elif isinstance(default, tuple):
        fits = isinstance(value, list | tuple) and len(value) == len(default)
        fits = fits and all(is_number(each, whole) for each in value)
        expected = f"a list of {len(default)} {numbers}s"
    else:
        return
    if not fits:
        raise ConfigError(f"{key} = {value!r}: expected {expected}")


def is_number(value, whole: bool) -> bool:
    """Whether it is a number, and with ``whole`` a whole one; true and false are none."""
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)
