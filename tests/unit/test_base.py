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
    with pytest.raises(NotImplementedError, match="^silent .* no "):
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


@pytest.mark.parametrize(
    "name, key, least, below",
    [
        ("parameter_server", "s", 0, -1),
        ("parameter_server", "r_max", 0, -1),
        ("parameter_server", "smax", 0, -1),
        ("parameter_server", "m", 1, 0),
        ("parameter_server", "servers", 1, 0),
        ("parameter_server", "compensation", 0.0, -0.1),
        ("local_sgd", "H", 1, 0),
        ("local_sgd", "post_local", 0, -1),
        ("local_sgd", "beta", 0.0, -0.1),
        ("lasgd", "Hmin", 1, 0),
        ("lasgd", "warmup", 0, -1),
        ("lasgd", "resync", 0, -1),
        ("lasgd", "alpha", 0.0, -0.1),
        ("lasgd", "beta", 0.0, -0.1),
        ("grsgd", "H", 1, 0),
        ("grsgd", "inbox_capacity", 1, 0),
        ("gosgd", "p", 0.0, -0.1),
        ("gosgd", "inbox_capacity", 1, 0),
        ("sgp", "tau", 0, -1),
        ("adpsgd", "period", 1, 0),
        ("gossip", "period", 1, 0),
        ("gossip", "kmin", 1, 0),
        ("easgd", "period", 1, 0),
        ("easgd", "alpha", 0.0, -0.1),
        ("cssgd", "r", 1, 0),
        ("ssgd", "r", 1, 0),
    ],
)
def test_the_least_that_an_option_may_be(name, key, least, below):
    options = ALGORITHMS[name].Options
    assert getattr(options(**{key: least}), key) == least
    with pytest.raises(ValidationError, match=key):
        options(**{key: below})


@pytest.mark.parametrize(
    "name, key, most, above",
    [
        ("lasgd", "alpha", 1.0, 1.1),
        ("lasgd", "beta", 0.99, 1.0),
        ("local_sgd", "beta", 0.99, 1.0),
        ("gosgd", "p", 1.0, 1.1),
        ("gossip", "target", 1.0, 1.1),
        ("easgd", "alpha", 1.0, 1.1),
        ("parameter_server", "lam", 1.0, 1.1),
    ],
)
def test_the_most_that_an_option_may_be(name, key, most, above):
    options = ALGORITHMS[name].Options
    assert getattr(options(**{key: most}), key) == most
    with pytest.raises(ValidationError, match=key):
        options(**{key: above})
