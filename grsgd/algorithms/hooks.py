"""Call of an algorithm's hook, which may be a plain method, or a schedule (a generator that yields each object it waits
for)."""

from collections.abc import Callable, Iterator
from types import GeneratorType

from grsgd.errors import ConfigError


def schedule_of(hook: Callable):
    """Generator that calls ``hook``, and runs the generator that ``hook`` may return. Returns the result of the hook's
    generator, or None if ``hook`` returns None.

    Raises ConfigError if ``hook`` returned an object that ``hook`` should have yielded, in order to wait for the
    object.
    """
    schedule = hook()
    if schedule is None:
        return None
    if type(schedule) is not GeneratorType and not isinstance(schedule, Iterator):  # type() is faster than isinstance()
        name = getattr(hook, "__qualname__", hook)
        raise ConfigError(f"{name}() returned {type(schedule).__name__}: yield the objects that it waits for")
    return (yield from schedule)
