"""Random streams: each depends on its purpose, its seed and its key alone, and no two are the same."""

import ast
import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from grsgd.seeding import MAX_KEY, Purpose, generator, seed_torch, torch_seed

ROOT = Path(__file__).parents[2]
SEEDS = [0, 1, 2, 2**32, 2**32 + 1, 2**63 - 1]
KEYS = [(), *itertools.product([0, 1, MAX_KEY], repeat=1), *itertools.product([0, 1], repeat=2), (0, 0, 0), (1, 0, 0)]
STREAMS = list(itertools.product(Purpose, SEEDS, KEYS))
DRAWS = {"default_rng", "RandomState", "SeedSequence", "PCG64", "manual_seed", "manual_seed_all", "Random", "seed"}
"""Functions and classes that begin a random stream."""


def test_no_two_streams_coincide():
    """Nor does one begin where another continues, within its first numbers."""
    firsts = [generator(*stream[:2], *stream[2]).integers(2**63, size=4).tolist() for stream in STREAMS]
    assert len(STREAMS) > 500
    assert len({number for first in firsts for number in first}) == 4 * len(STREAMS)


def test_no_two_torch_seeds_coincide():
    seeds = {torch_seed(purpose, seed, *key) for purpose, seed, key in STREAMS}
    assert len(seeds) == len(STREAMS)
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert torch_seed(Purpose.DROPOUT, 0, 1) != torch_seed(Purpose.DROPOUT, 1, 0)


def test_numpy_pads_with_zeros():
    """Why a stream is not ``default_rng((seed, *key))``."""
    padded = [np.random.default_rng(entropy).random() for entropy in ((3, 1), (3, 1, 0))]
    assert padded[0] == padded[1]
    assert generator(Purpose.ORDER, 3, 1).random() != generator(Purpose.ORDER, 3, 1, 0).random()


def test_numpy_puts_the_words_together_in_the_same_way():
    for purpose, seed, key in STREAMS:
        theirs = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.value.encode()), *key))
        drawn = np.random.Generator(np.random.PCG64(theirs)).integers(2**63, size=2)
        np.testing.assert_array_equal(generator(purpose, seed, *key).integers(2**63, size=2), drawn)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_stream_is_the_same_each_time(purpose):
    first, second = (generator(purpose, 7, 2, 5).random(3).tolist() for _ in range(2))
    assert first == second == generator(purpose, (7, 2), 5).random(3).tolist()
    assert torch_seed(purpose, 7, 2) == torch_seed(purpose, 7, 2)


def test_the_order_of_the_data_is_what_it_has_always_been():
    """Recorded runs are to be repeated with the same numbers."""
    assert generator(Purpose.ORDER, 1, 2, 3).integers(1000, size=4).tolist() == [796, 809, 86, 49]


def test_a_model_starts_as_after_manual_seed():
    seed_torch(torch.device("cpu"), Purpose.INITIAL_MODEL, 5)
    drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_torch_draws_from_the_stream():
    first, second, other = [], [], []
    for drawn, key in ((first, (0, 1)), (second, (0, 1)), (other, (1, 0))):
        seed_torch(torch.device("cpu"), Purpose.BLOCK_DROPOUT, 0, *key)
        drawn.extend(torch.rand(3).tolist())
    assert first == second != other


@pytest.mark.parametrize(("seed", "key"), [(-1, ()), (2**128, ()), (0, (-1,)), (0, (0, 2**32))])
def test_what_is_out_of_range_is_refused(seed, key):
    for function in (generator, torch_seed):
        with pytest.raises(ValueError, match="expected"):
            function(Purpose.ORDER, seed, *key)


def test_all_streams_are_begun_in_one_module():
    assert begun_elsewhere(ROOT / "grsgd") + begun_elsewhere(ROOT / "coding") == []


def begun_elsewhere(package: Path) -> list[str]:
    """Calls in ``package``, outside ``seeding.py`` and the testing kit, of functions that begin a random stream."""
    calls = []
    for path in sorted(package.rglob("*.py")):
        if path.name != "seeding.py" and path.parent != ROOT / "grsgd" / "testing":
            names = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            calls += [f"{path.relative_to(ROOT)}:{node.lineno}" for node in names if name_of(node.func) in DRAWS]
    return calls


def name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
