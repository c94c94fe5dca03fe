"""Errors that end a run whose steps go on without silent ranks, each in a line that says all there is to say."""


class SilentRanks(RuntimeError):
    """More ranks are silent, or gone, than may be; names them."""


class UnequalBlocks(RuntimeError):
    """Ranks have computed different gradients of one block, of which no code can make a sum; names them."""
