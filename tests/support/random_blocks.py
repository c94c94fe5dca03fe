"""Random blocks for the schemes of `grsgd.comm.coded.scheme`."""

import numpy as np

SUMS_ARE_SENT = {"grouped-rs", "local-sum"}
"""Schemes whose sums must keep the range of int32; they overwrite their blocks."""


def fill(scheme, kind, key):
    """Fill the blocks with random numbers, the same on all ranks; return their sum.

    The numbers have the full range of int32, unless sums of blocks are sent.
    """
    top = 2**31 // scheme.num_blocks if kind in SUMS_ARE_SENT else 2**31
    blocks = np.random.default_rng(key).integers(-top, top, (scheme.num_blocks, scheme.length)).astype(np.int32)
    for k, block in enumerate(scheme.blocks):
        scheme.block_buffer(k)[:] = blocks[block]
    return blocks.sum(0, dtype=np.int64)
