"""Which cases of a parametrised test ``make test`` runs; ``make test-all`` runs the others, too."""

import pytest


def cases(every: list, quick: list) -> list:
    """Every case, of which ``make test`` runs the quick ones."""
    assert all(case in every for case in quick), "a case that is not there"
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=EXHAUSTIVE)
        for case in every
    ]


EXHAUSTIVE = pytest.mark.exhaustive
