"""Which of many cases a quick test has; `pytest -m exhaustive` runs the others."""

import pytest


def exhaustive_unless(quick, cases) -> list:
    """``cases``, tuples or single values, for `pytest.mark.parametrize`; those that are not ``quick`` are marked."""
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(pytest.param(*values, marks=() if quick(*values) else pytest.mark.exhaustive))
    return found
