"""Distribution of the training data to ranks: the shards of the data, and the order in which a rank reads its
samples."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from grsgd.errors import DataError
from grsgd.seeding import Purpose, generator


def shards(labels: np.ndarray, n: int, *, alpha: float | None = None, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Split the samples whose classes are ``labels`` into ``n`` disjoint shards. Return each shard as a read-only int64
    array of sample numbers. All ranks that call this function with the same arguments get the same shards.

    Without ``alpha`` the samples are split at random, and the sizes of the shards differ by one at most. With
    ``alpha``, each class is distributed over the shards in proportions drawn from a Dirichlet(alpha) distribution (Hsu,
    Qi and Brown, 2019). The smaller ``alpha`` is, the fewer classes dominate a shard. Raises ValueError if ``n`` or
    ``alpha`` is not positive. Raises DataError if a shard would have no samples.
    """
    if n < 1:
        raise ValueError(f"n is {n}, expected at least one shard")
    if alpha is not None and not alpha > 0:
        raise ValueError(f"alpha is {alpha}, expected a positive number")
    labels = np.asarray(labels)
    if labels.dtype.hasobject:
        labels = np.unique(labels, return_inverse=True)[1]
    return _split(labels.tobytes() if alpha is not None else b"", labels.dtype, len(labels), n, alpha, seed)


@lru_cache(maxsize=1)  # in a simulation one process runs all ranks, which need the same shards
def _split(labels: bytes, dtype, samples: int, n: int, alpha: float | None, seed: int) -> tuple[np.ndarray, ...]:
    rng = generator(Purpose.SHARDS, seed)
    parts = _even(samples, n, rng) if alpha is None else _by_class(np.frombuffer(labels, dtype), n, alpha, rng)
    for k, part in enumerate(parts):
        if not len(part):
            cure = "use fewer ranks" if alpha is None else f"raise alpha (now {alpha}) or use fewer ranks"
            raise DataError(f"shard {k} of {n} gets none of the {samples} training samples; {cure}")
        part.flags.writeable = False
    return tuple(parts)


def _even(samples: int, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(rng.permutation(samples), n)


def _by_class(labels: np.ndarray, n: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    dealt = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = np.cumsum(rng.dirichlet(np.full(n, alpha)))[:-1]
        dealt.append(np.split(members, np.rint(shares * len(members)).astype(int)))
    return [np.concatenate(parts) for parts in zip(*dealt, strict=True)]


def held_by(rank: int, n: int, replication: int) -> list[int]:
    """Return the numbers of the shards of the training data that ``rank``, one of ``n`` ranks, holds, in ascending
    order. Shard k is held by ``replication`` ranks: by rank k, rank k + 1 and so on, modulo ``n``.

    Raises ValueError unless 0 <= rank < n and 1 <= replication <= n.
    """
    if not 0 <= rank < n:
        raise ValueError(f"rank is {rank}, expected 0..{n - 1}")
    if not 1 <= replication <= n:
        raise ValueError(f"replication is {replication}, expected 1..{n}, the number of ranks")
    return sorted((rank - back) % n for back in range(replication))


def index_stream(
    indices: np.ndarray, batch_size: int, *, seed: int, rank: int, first: int = 0
) -> Iterator[np.ndarray]:
    """Yield, without end, batches of ``batch_size`` elements of ``indices``, from batch number ``first`` on.

    In each epoch, ``indices`` are in a new random order. No batch is shortened at the end of an epoch. So a batch may
    contain the end of an epoch and the beginning of the next epoch. If ``indices`` is short, a batch may contain
    several epochs. Raises ValueError, before the first batch, if ``indices`` is empty, or if ``batch_size`` is below 1.
    """
    indices = np.asarray(indices)
    if not len(indices):
        raise ValueError("indices is empty: there are no samples for batches")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, expected at least 1")
    return _cut(indices, batch_size, seed, rank, first)


def _cut(indices, batch_size, seed, rank, first):
    def order(epoch):
        return generator(Purpose.ORDER, seed, rank, epoch).permutation(indices)

    epoch, begin = divmod(first * batch_size, len(indices))
    left = order(epoch)[begin:]
    while True:
        while len(left) < batch_size:
            epoch += 1
            left = np.concatenate([left, order(epoch)])
        yield left[:batch_size]
        left = left[batch_size:]
