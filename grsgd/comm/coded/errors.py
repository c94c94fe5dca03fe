"""Errors that end a run with `TolerantSum`, the coded scheme whose steps can end without the messages of silent ranks.
The message of each error in this module is one line."""


class SilentRanks(RuntimeError):
    """Error raised if more ranks have died or send no messages than the option ``algorithm.silent`` allows. The message
    of `SilentRanks` names the ranks that have died or send no messages."""


class UnequalBlocks(RuntimeError):
    """Error raised if two ranks have computed different gradients of one block, because then the sum of all blocks
    cannot be decoded. The message of `UnequalBlocks` names the two ranks."""
