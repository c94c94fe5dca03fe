"""Benchmarks, validation and random runs find algorithms and their options by themselves."""

import argparse
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
from pydantic import Field, model_validator

from experiments.arguments import add_workers
from experiments.bench.reading import Neighbour
from experiments.options import allowed, choices, variants
from experiments.scaling import __main__ as scaling
from experiments.validation import variant as validation
from grsgd.algorithms import ALGORITHMS, Algorithm, Options, Traits
from grsgd.config import parse
from grsgd.errors import ConfigError
from tests.stress import draw


class SpareOptions(Options):
    kind: Literal["one", "two"] = "one"
    often: int = Field(2, ge=2, le=4)
    share: float = Field(0.1, ge=0, le=1)
    pull: float | None = Field(None, ge=0, le=1)
    size: Literal["auto"] | int = "auto"
    where: str = Field("here", examples=["there"])
    on: bool = True
    wait_seconds: float = 1.0

    @model_validator(mode="after")
    def fits(self):
        if self.kind == "two" and not self.on:
            raise ValueError("two is always on")
        return self


@pytest.fixture
def spare():
    """An algorithm that is registered while a test runs."""

    class Spare(Algorithm, name="spare"):
        """Ranks that train alone, with options that change nothing."""

        traits = Traits(synchronous=True)
        Options = SpareOptions

        @classmethod
        def check(cls, options, ranks):
            super().check(options, ranks)
            if options.often > ranks:
                raise ValueError("often")

    yield Spare
    del ALGORITHMS["spare"]


def test_choices(spare):
    assert {key: value for key, value in choices(spare.Options).items() if key not in Options.model_fields} == {
        "kind": ["one", "two"],
        "often": [2, 3, 4],
        "share": [0.1, 0.0, 1.0, 0.5],
        "pull": [None, 0.0, 0.1],
        "size": ["auto", 1, 2, 3, 4, 5],
        "where": ["here", "there"],
        "on": [True, False],
    }


def test_what_is_allowed(spare):
    assert allowed(spare, {"often": 3}, 3)
    assert not allowed(spare, {"often": 4}, 3)
    assert not allowed(spare, {"often": 3, "kind": "two", "on": False}, 3)
    assert not allowed(spare, {"unknown": 3}, 3)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_all_values_of_all_choices_are_drawn(name):
    cls, missing = ALGORITHMS[name], set()
    for key, field in cls.Options.model_json_schema()["properties"].items():
        expected = {*field.get("enum", []), *field.get("examples", [])} | {field["default"]}
        if None not in expected and key in choices(cls.Options):
            missing |= {(key, value) for value in expected - {draw.SETTLED_BY_MEASUREMENT.get(key)}}
    ranks = [n for n in draw.RANKS if allowed(cls, {}, n)]
    for seed in range(600):
        random = np.random.default_rng(seed)
        missing -= set(draw.algorithm(random, draw.choose(random, ranks), [name])[1].items())
        if not missing:
            break
    assert not missing


def test_runs_that_are_drawn_can_be_run_and_are_of_all_algorithms():
    found = set()
    for seed in range(400):
        run = draw.drawn(seed)
        found |= set(run.algorithms)
        if isinstance(run, draw.Training):
            parse(run.config).check_ranks(run.ranks)
        else:
            assert all(allowed(ALGORITHMS[one.algorithm], one.options, run.ranks) for one in run.learners)
    assert found == set(ALGORITHMS)


def test_a_new_algorithm_is_drawn(spare):
    found = [draw.drawn(seed) for seed in range(300)]
    assert any("spare" in run.algorithms for run in found if isinstance(run, draw.OwnLoop))
    options = [run.config["algorithm"] for run in found if run.algorithms == ["spare"] and hasattr(run, "config")]
    assert {"one", "two"} == {drawn["kind"] for drawn in options if "kind" in drawn}
    assert any("often" in drawn for drawn in options)


def test_a_new_algorithm_is_validated_in_all_its_variants(spare):
    spare.traits_of = classmethod(lambda cls, options: replace(cls.traits, label=f"spare {options.kind}"))
    assert variants(validation.BASE, "spare") == [(), ('algorithm.kind="two"',)]
    found = validation.variants_of(sorted(ALGORITHMS), 4)
    assert [variant.name for variant in found if variant.algorithm == "spare"] == ["spare", "spare-kind-two"]


def test_variants_of_the_algorithms(capsys):
    found = validation.variants_of(sorted(ALGORITHMS), 4)
    names = [variant.name for variant in found]
    assert len(set(names)) == len(names) and {variant.algorithm for variant in found} == set(ALGORITHMS)
    assert {"gossip", "gossip-adaptive-true", "gossip-mode-push", "parameter_server-strategy-bsp"} <= {*names}
    assert {"cssgd", "cssgd-scheme-grouped-rs", "easgd-centre-allreduce", "ring_allreduce-variant-tree"} <= {*names}
    assert not any("mpi" in name or "evict" in name for name in names) and not capsys.readouterr().err


def test_what_cannot_be_validated_is_named(spare, capsys):
    spare.check = classmethod(_refuse)
    assert validation.variants_of(["spare", "dpsgd"], 4) == [validation.Variant("dpsgd", ())]
    assert "left out: algorithm spare: too many" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="none"):
        validation.variants_of(["none"], 4)


def _refuse(cls, options, ranks):
    raise ValueError("too many")


def test_a_new_algorithm_is_scaled(spare):
    points = scaling.points_of(sorted(ALGORITHMS), [3], 1)
    assert {point.algorithm for point in points} == set(ALGORITHMS)
    assert next(point for point in points if point.algorithm == "spare").spec().load().algorithm_options.kind == "one"


def test_an_algorithm_has_its_own_configuration_for_many_ranks():
    points = scaling.points_of(["cssgd", "ring_allreduce"], [64, 128], 1)
    assert {point.ranks for point in points if point.algorithm == "cssgd"} == {64}
    assert {point.ranks for point in points if point.algorithm == "ring_allreduce"} == {64, 128}
    assert points[0].spec().load().algorithm_options.scheme == "grouped-rs"


def test_an_algorithm_in_a_file_is_scaled_and_validated(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from grsgd.algorithms.dpsgd import DPSGD\n\n\nclass Mine(DPSGD, name='mine'):\n    pass\n")
    (point, *_) = scaling.points_of([f"{file}:Mine"], [3], 1)
    assert point.spec().load().algorithm_class.__name__ == "Mine"
    (variant,) = validation.variants_of([f"{file}:Mine"], 4)
    assert variant.load().algorithm_class.__name__ == "Mine" and "/" not in variant.name


def test_simulations_at_once(capsys):
    parser = argparse.ArgumentParser()
    add_workers(parser)
    assert parser.parse_args([]).workers >= 1 and parser.parse_args(["--workers", "3"]).workers == 3
    for wrong in ("0", "-1", "many"):
        with pytest.raises(SystemExit):
            parser.parse_args([f"--workers={wrong}"])
        assert f"argument --workers: {wrong}: must be a whole number, 1 or more" in capsys.readouterr().err


def test_of_two_copies_of_a_model_only_the_one_that_is_exchanged_is_in_the_cache():
    """Else what is read in shared memory, written last, would come from there, and what is sent from farther away."""
    rows = np.zeros((2, 16), np.float32)
    neighbour = Neighbour(SimpleNamespace(rank=1, size=2), SimpleNamespace(rows=lambda dtype: rows), 32)
    neighbour.update(5, is_shared=False)
    assert (neighbour.own.array == 6).all() and not rows.any()
    neighbour.update(7, is_shared=True)
    assert (rows[1, :8] == 8).all() and (neighbour.own.array == 6).all() and not rows[0].any()
