"""What every algorithm has, and what one must say of itself."""

from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from coding.placement import subset_placement
from grsgd.algorithms import ALGORITHMS, Algorithm, Options, Traits
from grsgd.algorithms.base import GradientAlgorithm
from grsgd.algorithms.central import CentralAlgorithm, workers_of
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.algorithms.context import RankContext
from grsgd.models.replica import Replica


class Silent(Algorithm, name=None):
    """Says nothing of itself."""

    name = "silent"

    def __init__(self):
        """Nothing is needed."""


@pytest.mark.parametrize(
    "kind, ask",
    [
        (CommonBatchAlgorithm, lambda algorithm: algorithm.blocks(4)),
        (CommonBatchAlgorithm, lambda algorithm: algorithm.num_blocks),
        (CommonBatchAlgorithm, lambda algorithm: algorithm.block_gradient_ready(0)),
        (GradientAlgorithm, lambda algorithm: algorithm.reduce()),
        (CentralAlgorithm, lambda algorithm: algorithm.serve()),
        (CentralAlgorithm, lambda algorithm: algorithm.broadcast_model(None)),
    ],
)
def test_what_an_algorithm_must_say_is_asked_for_by_name(kind, ask):
    class Quiet(Silent, kind, name=None):
        """Says nothing of what its kind asks for."""

    with pytest.raises(NotImplementedError, match="^silent: .* must "):
        ask(Quiet())


def test_an_algorithm_that_says_nothing_has_taken_no_step_and_sends_to_all():
    silent = Silent()
    silent.comm = SimpleNamespace(size=3)
    assert silent.k == 0 and sorted(silent.topology.out_neighbours(1)) == [0, 2]


def test_what_a_death_means_is_checked_when_a_class_is_made():
    with pytest.raises(TypeError, match="'typo': survives_deaths='togehter' in its traits; allowed: False, True"):

        class Typo(Algorithm, name="typo"):
            traits = Traits(synchronous=True, survives_deaths="togehter")

    assert "typo" not in ALGORITHMS


def test_by_default_nothing_is_waited_for():
    silent = Silent()
    assert silent.weight == 1.0 and silent.warnings() == []
    assert CentralAlgorithm.workers(None, 7) == 7 and CommonBatchAlgorithm.arrays_held(None, 7) == 6
    silent.x, silent.replica = SimpleNamespace(tensor="x"), SimpleNamespace(buffers=SimpleNamespace(tensor="buffers"))
    assert silent.snapshot() == ("x", "buffers")


def test_the_contract_of_an_algorithm_is_small():
    """What a newcomer must know: hooks, attributes and what is said of the class; five of them are for checkpoints,
    three for ranks that die, two for options that depend on where a run takes place, three for memory, one for
    participation."""

    class Local(Algorithm, name=None):
        traits = Traits(synchronous=True)

    comm = SimpleNamespace(rank=0, size=1)
    model = torch.nn.Linear(2, 1)
    context = RankContext(comm, comm, driver=None)
    local = Local(Options(), Replica(model), torch.optim.SGD(model.parameters(), lr=0.1), context)
    public = {name for name in {*dir(local), *Algorithm.__annotations__} if not name.startswith("_")}
    assert len(public) <= 25 + 5 + 3 + 2 + 3 + 1, sorted(public)


def test_a_name_is_given_once():
    with pytest.raises(TypeError, match="two algorithms are called 'dpsgd'"):

        class Again(Algorithm, name="dpsgd"):
            """Another one."""


@pytest.mark.parametrize("wrong", [{"H": "1"}, {"H": 0}, {"H": 1.0}, {"h": 1}])
def test_options_are_checked(wrong):
    options = ALGORITHMS["local_sgd"].Options
    with pytest.raises(ValidationError):
        options(**wrong)
    with pytest.raises(ValidationError, match="frozen"):
        options(H=2).H = 3


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_what_it_is(name):
    cls = ALGORITHMS[name]
    workers = workers_of(cls, cls.Options(), 4)
    assert workers in (3, 4) and cls.paper
    assert cls.traits.label == name and cls.traits_of(cls.Options()).label.split()[0] == name
    cls.check(cls.Options(), 4)


@pytest.mark.parametrize("n, r", [(5, 1), (5, 2), (5, 3), (4, 4), (6, "auto")])
def test_a_rank_of_cssgd_holds_a_gradient_of_every_block(n, r):
    """And of one block where groups of ranks share it; besides the int64 sum and a packet of each rank."""
    cls, least = ALGORITHMS["cssgd"], 1 if r == "auto" else r
    blocks, others = len(subset_placement(n, least).blocks(0)), 2 + n / least
    for scheme in ("coded", "uncoded"):
        assert cls.arrays_held(cls.Options(scheme=scheme, r=r), n) == pytest.approx(blocks + others)
    for scheme in ("grouped-direct", "grouped-rs"):
        assert cls.arrays_held(cls.Options(scheme=scheme, r=r), n) == pytest.approx(1 + others)


@pytest.mark.parametrize(
    "name, key, least, below",
    [
        ("parameter_server", "s", 0, -1),
        ("parameter_server", "r_max", 0, -1),
        ("parameter_server", "smax", 0, -1),
        ("parameter_server", "slow_streak", 1, 0),
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
        ("gossip", "min_interval", 1, 0),
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
        ("gossip", "target_rate", 1.0, 1.1),
        ("easgd", "alpha", 1.0, 1.1),
        ("parameter_server", "delay_ema", 1.0, 1.1),
    ],
)
def test_the_most_that_an_option_may_be(name, key, most, above):
    options = ALGORITHMS[name].Options
    assert getattr(options(**{key: most}), key) == most
    with pytest.raises(ValidationError, match=key):
        options(**{key: above})
