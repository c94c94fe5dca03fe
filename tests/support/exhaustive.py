"""Choice of the cases of a parametrised test that ``make test`` runs; ``make test-all`` also runs the others."""

from collections.abc import Callable

import pytest


def exhaustive_unless(quick: list | Callable, cases) -> list:
    """Return the cases, tuples or single values, for `pytest.mark.parametrize`; cases that are not quick are marked.

    ``quick``: a list of cases, or a function of the values of a case.
    """
    if not callable(quick) and (unknown := [case for case in quick if case not in list(cases)]):
        raise ValueError(f"{unknown} are not among the cases")
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        chosen = quick(*values) if callable(quick) else case in quick
        found.append(pytest.param(*values, marks=() if chosen else pytest.mark.exhaustive))
    return found
