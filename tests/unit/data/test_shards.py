"""Shards and the order in which they are read."""

import itertools

import numpy as np
import pytest

from grsgd.data.shards import held_by, index_stream, shards
from grsgd.errors import DataError

LABELS = np.repeat(np.arange(10), 100)


@pytest.mark.parametrize("alpha", [None, 0.5, 100])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shards_are_a_partition(n, alpha):
    parts = shards(LABELS, n, alpha=alpha, seed=1)
    assert len(parts) == n
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_even_shards():
    sizes = [len(part) for part in shards(LABELS, 7)]
    assert max(sizes) - min(sizes) == 1
    parts = shards(LABELS, 4)
    assert all(np.bincount(LABELS[part], minlength=10).min() > 5 for part in parts)


def test_small_alpha_concentrates_classes():
    def evenness(alpha):
        counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in shards(LABELS, 4, alpha=alpha, seed=2)])
        return counts.std() / counts.mean()

    assert evenness(0.1) > 3 * evenness(10) > 3 * evenness(1000)


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_shards_depend_on_the_seed_alone(alpha):
    one, again, other = (shards(LABELS, 3, alpha=alpha, seed=seed) for seed in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])


def test_shards_refuse():
    with pytest.raises(DataError, match="shard 3 of 5 .* fewer ranks"):
        shards(np.zeros(3, int), 5)
    with pytest.raises(DataError, match="raise alpha .* or use fewer ranks"):
        shards(np.repeat([0, 1], 50), 20, alpha=0.01)
    with pytest.raises(ValueError, match="n is 0"):
        shards(LABELS, 0)
    for alpha in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="alpha is"):
            shards(LABELS, 2, alpha=alpha)


@pytest.mark.parametrize("n", range(1, 6))
def test_each_shard_is_held_rho_times(n):
    for rho in range(1, n + 1):
        held = [held_by(rank, n, rho) for rank in range(n)]
        assert all(len(numbers) == rho and numbers == sorted(numbers) for numbers in held)
        for shard in range(n):
            assert {rank for rank in range(n) if shard in held[rank]} == {(shard + k) % n for k in range(rho)}


@pytest.mark.parametrize(("rank", "n", "rho"), [(0, 3, 0), (0, 3, 4), (3, 3, 1), (-1, 3, 1)])
def test_held_by_refuses(rank, n, rho):
    with pytest.raises(ValueError, match="expected"):
        held_by(rank, n, rho)


INDICES = np.array([3, 14, 15, 92, 65, 35, 89])


def first(count, size, **options):
    return list(itertools.islice(index_stream(INDICES, size, **dict(seed=0, rank=0) | options), count))


@pytest.mark.parametrize("size", [1, 3, 7, 10, 30])
def test_stream_is_made_of_epochs(size):
    batches = first(7 * 4, size)
    assert all(len(batch) == size for batch in batches)
    epochs = np.concatenate(batches).reshape(-1, 7)
    assert all(np.array_equal(np.sort(epoch), np.sort(INDICES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_stream_depends_on_seed_and_rank():
    runs = [np.concatenate(first(5, 7, seed=seed, rank=rank)) for seed in (0, 1) for rank in (0, 1)]
    assert len({tuple(run) for run in runs}) == 4


def test_stream_refuses_at_once():
    for options, word in [(dict(batch_size=0), "batch_size"), (dict(indices=[]), "indices")]:
        with pytest.raises(ValueError, match=word):
            index_stream(**dict(indices=INDICES, batch_size=2, seed=0, rank=0) | options)
