"""Errors that end a run whose steps go on without silent ranks. The message of each error is one complete line."""


class SilentRanks(RuntimeError):
    """Error that says that more ranks are silent or gone than the run tolerates; its message names these ranks."""


class UnequalBlocks(RuntimeError):
    """Error that says that ranks have computed different gradients of one block, so that no code can compute a sum. Its
    message names these ranks."""
