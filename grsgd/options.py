"""Check that the value of an option of a model, a data set or a task has the same type as the option's default."""

from grsgd.errors import ConfigError


def check_kind(key: str, value, default, whole: bool = False):
    """Raise ConfigError if the value of option ``key`` differs in type from ``default``: a bool, a number, or a list of
    numbers of the same length. If ``whole``, numbers must be whole. If ``default`` has any other type, every value is
    allowed."""
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
    """Return whether ``value`` is a number or, if ``whole``, a whole number. True and False do not count as numbers."""
    return isinstance(value, int if whole else int | float) and not isinstance(value, bool)
