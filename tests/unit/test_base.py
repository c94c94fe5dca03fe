"""What every algorithm has, and what one must say of itself."""

import inspect
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from coding.placement import subset_placement
from grsgd.algorithms import ALGORITHMS, Algorithm, Options


class Silent(Algorithm, name=None):
    """Says nothing of itself."""

    name = "silent"

    def __init__(self):
        """Nothing is needed."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda algorithm: algorithm.blocks(4),
        lambda algorithm: algorithm.reduce(),
        lambda algorithm: algorithm.steps,
        lambda algorithm: algorithm.accompany(),
    ],
)
def test_what_an_algorithm_must_say_is_asked_for_by_name(ask):
    with pytest.raises(NotImplementedError, match="^silent .* and no "):
        if inspect.isgenerator(found := ask(Silent())):
            next(found)


def test_by_default_nothing_is_waited_for():
    silent = Silent()
    assert list(silent.catch_up()) == list(silent.publish(None)) == []
    assert silent.evicted is False and silent.weight == 1.0 and silent.warnings() == []
    assert Silent.needs_content(None) is False and Silent.workers(None, 7) == 7
    silent.x = SimpleNamespace()
    assert silent.model() is silent.x


def test_a_name_is_given_once():
    with pytest.raises(TypeError, match="two algorithms are called 'dpsgd'"):

        class Again(Algorithm, name="dpsgd"):
            """Another one."""


@pytest.mark.parametrize("wrong", [{"rho": "1"}, {"rho": 0}, {"rho": 1.0}, {"roh": 1}])
def test_options_are_checked(wrong):
    with pytest.raises(ValidationError):
        Options(**wrong)
    with pytest.raises(ValidationError, match="frozen"):
        Options(rho=2).rho = 3


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_redundancy_of_data_is_at_most_the_number_of_ranks(name):
    cls = ALGORITHMS[name]
    workers = cls.workers(cls.Options(), 4)
    assert workers in (3, 4) and cls.synchronous in (True, False) and cls.paper
    cls.check(cls.Options(), 4)
    with pytest.raises(ValueError, match=f"rho = {workers + 1}"):
        cls.check(cls.Options(rho=workers + 1), 4)
    if not cls.shared_batch:
        cls.check(cls.Options(rho=workers), 4)


@pytest.mark.parametrize("n, r", [(5, 1), (5, 2), (5, 3), (4, 4), (6, "auto")])
def test_a_rank_of_cssgd_holds_a_gradient_of_every_block(n, r):
    """And of one block where groups of ranks share it."""
    cls = ALGORITHMS["cssgd"]
    blocks = len(subset_placement(n, 1 if r == "auto" else r).blocks(0))
    for scheme in ("coded", "uncoded"):
        assert cls.copies(cls.Options(scheme=scheme, r=r), n) == 10 + blocks
    for scheme in ("grouped-direct", "grouped-rs"):
        assert cls.copies(cls.Options(scheme=scheme, r=r), n) == 11
