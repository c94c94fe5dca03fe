"""Settings of the library Hypothesis for tests of properties."""

from hypothesis import settings

seeded = settings(deadline=None, derandomize=True, max_examples=24)
"""Settings for tests of properties with the same examples in every run, without a time limit for an example."""

untimed = settings(deadline=None)
"""Settings for tests of properties with other examples in every run. There is no time limit, because the first example
may compile a function."""
