"""The frequency of Python's garbage collection during a simulation."""

import gc
from contextlib import contextmanager

RARELY = 100_000
"""Number of new objects after which Python searches the new objects for garbage; Python's default is 700."""


@contextmanager
def not_looked_for(rarely: bool):
    """Return a context in which garbage collection skips all objects that exist when the context begins.

    Thousands of objects exist for the whole simulation, so a search for garbage among them is useless. If ``rarely``,
    Python rarely searches new objects for garbage, too. Rare searches suit simulations of times only, because such
    simulations create no objects that refer to each other in a circle.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    if rarely:
        gc.set_threshold(RARELY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # without this call, the skipped objects would never be collected
