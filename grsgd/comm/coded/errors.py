"""Errors that end a run whose steps go on without silent ranks; each message is one line and needs no other."""


class SilentRanks(RuntimeError):
    """More ranks are silent or gone than the run tolerates; the message names them."""


class UnequalBlocks(RuntimeError):
    """Ranks have computed different gradients of one block, so no code can compute a sum; the message names the
    ranks."""
