"""Random numbers in the blocks of the coded schemes of `grsgd.comm.coded.scheme`, for tests."""

import numpy as np

SUMS_ARE_SENT = {"grouped-rs", "local-sum"}
"""Schemes that send sums of blocks. These sums must not exceed the range of int32, and overwrite the blocks."""


def fill(scheme, kind, key):
    """Fill the blocks of ``scheme`` with random numbers, the same on all ranks. Return the sum of all blocks.

    The numbers have the full range of int32, unless the scheme sends sums of blocks.
    """
    top = 2**31 // scheme.num_blocks if kind in SUMS_ARE_SENT else 2**31
    blocks = np.random.default_rng(key).integers(-top, top, (scheme.num_blocks, scheme.length)).astype(np.int32)
    for k, block in enumerate(scheme.blocks):
        scheme.block_buffer(k)[:] = blocks[block]
    return blocks.sum(0, dtype=np.int64)
