"""Errors that end a run of a scheme whose steps can end without silent ranks. The message of each error is one complete
line."""


class SilentRanks(RuntimeError):
    """Error that says that more ranks are silent or gone than the run tolerates. The error's message names these
    ranks."""


class UnequalBlocks(RuntimeError):
    """Error that says that ranks have computed different gradients of one block. Then no code can compute the sum of
    the blocks. The error's message names these ranks."""
