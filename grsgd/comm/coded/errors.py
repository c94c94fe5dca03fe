"""Errors that end a run of `TolerantSum`, the scheme whose steps can end without the messages of silent ranks. The
message of each error is one line."""


class SilentRanks(RuntimeError):
    """Error raised if more ranks are silent or have died than the option ``algorithm.silent`` allows. The error's
    message names the silent or dead ranks."""


class UnequalBlocks(RuntimeError):
    """Error raised if two ranks have computed different gradients of one block, so that the sum of all blocks cannot be
    decoded. The error's message names both ranks."""
