"""Rarer garbage collection by Python during a simulation, which saves computing time."""

import gc
from contextlib import contextmanager

RARELY = 100_000
"""Number of new objects after which Python searches the new objects for garbage; Python's default is 700."""


@contextmanager
def not_looked_for(rarely: bool):
    """Return a context in which Python's garbage collector ignores all objects that exist at the beginning of the
    context.

    A simulation has thousands of objects that exist until its end, so searching them for garbage is useless. If
    ``rarely``, Python also searches the new objects less often. ``rarely`` suits simulations that compute only times,
    because they create no objects that refer to each other in a circle.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    if rarely:
        gc.set_threshold(RARELY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # without this call, the garbage collector would ignore the old objects for ever
