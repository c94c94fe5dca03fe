"""Call of an algorithm's hook, for every loop: a hook may be a schedule or a plain method."""

from collections.abc import Callable, Iterator
from types import GeneratorType

from grsgd.errors import ConfigError


def schedule_of(hook: Callable):
    """Schedule: call a hook, and run its result if that is a schedule; returns the value of that schedule.

    Raises ConfigError if the hook returned an object that it should have yielded.
    """
    schedule = hook()
    if schedule is None:
        return None
    if type(schedule) is not GeneratorType and not isinstance(schedule, Iterator):  # the first test is quicker
        name = getattr(hook, "__qualname__", hook)
        raise ConfigError(f"{name}() returned {type(schedule).__name__}: yield the objects that it waits for")
    return (yield from schedule)
