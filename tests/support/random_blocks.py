"""Random blocks for the schemes of `grsgd.comm.coded.scheme`."""

import numpy as np

SUMS_ARE_SENT = {"grouped-rs", "local-sum"}
"""Schemes whose sums must keep the range of int32; they write over their blocks."""


def fill(scheme, kind, key):
    """Random blocks, the same on all ranks, of the full range of int32 unless sums are sent; returns their sum."""
    top = 2**31 // scheme.num_blocks if kind in SUMS_ARE_SENT else 2**31
    blocks = np.random.default_rng(key).integers(-top, top, (scheme.num_blocks, scheme.length)).astype(np.int32)
    for k, block in enumerate(scheme.blocks):
        scheme.block_buffer(k)[:] = blocks[block]
    return blocks.sum(0, dtype=np.int64)
