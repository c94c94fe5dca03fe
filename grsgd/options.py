"""Options of a model, a data set or a task: a check that a value is of the default's kind."""

from grsgd.errors import ConfigError


def check_kind(key: str, value, default, whole: bool = False):
    """Raise ConfigError if ``value`` is not of the kind of the option's default: true or false, a number, or a list of
    equally many numbers. ``whole`` asks for whole numbers. A default of any other kind allows everything."""
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
    """Return whether ``value`` is a number, and a whole number with ``whole``; true and false are no numbers."""
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)
