"""Division of a text into training samples and test samples. The input of a sample is a window of bytes, and its target
is the window that begins one byte later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from grsgd.data.base import TOKENS, Dataset
from grsgd.data.digest import digest_of
from grsgd.errors import DataError
from grsgd.lazy import LazyModule

torch = LazyModule("torch")

BYTES = 256
"""Number of different tokens in a text, in which every byte is a token."""
TEST_PART = 0.1
"""Fraction of a text, at its end, that is used as test data."""


class TextSplit:
    """``Split`` of a text, uint8 [number of bytes]. The samples of this split are windows of ``block`` bytes that do
    not overlap.

    A sample is a pair (x, y), both int64 [block]. x has the bytes of a window. y has, for each byte of x, the next byte
    in the text.
    """

    def __init__(self, text: np.ndarray, block: int):
        self.block, count = block, max(len(text) - 1, 0) // block
        self._x, self._y = (text[begin : begin + count * block].reshape(count, block) for begin in (0, 1))
        self.labels = np.zeros(count, np.int64)
        """Zeros in place of the samples' classes, because text has no classes."""

    def __len__(self) -> int:
        return len(self.labels)

    def digest(self) -> int:
        """Return the CRC-32 of the inputs and targets of all samples."""
        return digest_of([self._x, self._y])

    def batches(
        self,
        indices: Iterable[np.ndarray],
        *,
        augment: bool = False,
        seed: int | Sequence[int] = 0,
        workers: int = 0,
        first: int = 0,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches as described in ``Split.batches``. ``workers`` is ignored, because the text is in memory and
        needs no worker processes."""
        if augment:
            raise DataError("augment is on: text has no augmentation")
        return self._batches(indices)

    def _batches(self, indices):
        for index in indices:
            yield tuple(torch.from_numpy(part[index].astype(np.int64)) for part in (self._x, self._y))


def dataset_of_text(name: str, text: bytes, block: int, source: str) -> Dataset:
    """Return the data set ``name``, in which ``text`` is cut into samples of ``block`` bytes. The last tenth of
    ``text`` is the test data, and all text before it is the training data. Raises DataError if ``text`` is too short
    for a training sample and a test sample."""
    if block < 1:
        raise DataError(f"block is {block}, expected at least 1")
    content = np.frombuffer(text, np.uint8)
    begin = len(content) - int(TEST_PART * len(content))
    splits = TextSplit(content[:begin], block), TextSplit(content[begin:], block)
    if not all(map(len, splits)):
        raise DataError(f"block is {block}: a text of {len(content):,} bytes is too short for windows of this length")
    return Dataset(name, *splits, (block,), BYTES, source, TOKENS)
