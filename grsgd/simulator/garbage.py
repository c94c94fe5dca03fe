"""The frequency of Python's garbage collection during a simulation."""

import gc
from contextlib import contextmanager

RARELY = 100_000
"""Number of new objects after which Python looks for garbage among them; Python's default is 700."""


@contextmanager
def not_looked_for(rarely: bool):
    """Return a context in which garbage collection skips all objects that exist at its beginning.

    Thousands of objects exist for the whole simulation, so a search for garbage among them is useless. With ``rarely``,
    Python also looks rarely for garbage among new objects. This suits simulations of times only, because they create no
    objects that refer to each other in a circle.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    if rarely:
        gc.set_threshold(RARELY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # otherwise the objects would never be collected
