"""Settings of Hypothesis."""

from hypothesis import settings

seeded = settings(deadline=None, derandomize=True, max_examples=24)
"""Settings for properties that must be the same in every run of the tests, however busy the machine is."""

untimed = settings(deadline=None)
"""Settings for properties with other examples in every run. The first example may compile a function."""
