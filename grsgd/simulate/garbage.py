"""How often Python looks for garbage while a simulation goes on."""

import gc
from contextlib import contextmanager

RARELY = 100_000
"""So many new objects, and not 700, before Python looks through them."""


@contextmanager
def not_looked_for(rarely: bool):
    """A block in which Python never looks for garbage among what is there before, thousands of objects that stay, and
    ``rarely`` among what comes: of time alone a simulation makes no objects that refer to each other in a circle."""
    thresholds = gc.get_threshold()
    gc.freeze()
    if rarely:
        gc.set_threshold(RARELY, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()  # or they would stay for ever
