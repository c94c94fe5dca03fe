"""Choice of the cases of a parametrised test that ``make test`` runs; ``make test-all`` also runs all other cases."""

from collections.abc import Callable

import pytest


def exhaustive_unless(quick: list | Callable, cases) -> list:
    """Return ``cases`` (tuples or single values) for `pytest.mark.parametrize`. Cases that are not quick get the mark
    ``exhaustive``.

    ``quick``: a list of the quick cases, or a function of the values of a case that returns whether the case is quick.
    """
    if not callable(quick) and (unknown := [case for case in quick if case not in list(cases)]):
        raise ValueError(f"{unknown} are not among the cases")
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        chosen = quick(*values) if callable(quick) else case in quick
        found.append(pytest.param(*values, marks=() if chosen else pytest.mark.exhaustive))
    return found
