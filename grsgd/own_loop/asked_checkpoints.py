"""Checkpoints of a loop over `grsgd.surviving` for which a signal asks."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from grsgd.comm.elastic.meeting import GO_ON
from grsgd.job.exit_code import ScriptExit
from grsgd.job.signals import CHECKPOINT, CHECKPOINTED, EXIT_CODE, REASONS, Interruption, raise_interrupt

USUAL = (signal.SIG_DFL, signal.default_int_handler, raise_interrupt)
"""Handlers that are replaced. Other handlers belong to the script."""


class EndedBySignal(ScriptExit):
    """Exit of a script after the checkpoint with which its loop ends, on all ranks, because of a signal."""

    def __init__(self, reason: str, has_checkpoint: bool):
        super().__init__(CHECKPOINTED if has_checkpoint else EXIT_CODE)
        self.reason = reason


def end_by_signal(loop, reason: str):
    """End a loop between two iterations, on all ranks, after the checkpoint that a signal has asked for.

    The lowest rank that has a process says from which checkpoint a later job goes on. Raises EndedBySignal.
    """
    last = loop.recovery.last
    if loop.algorithm.comm.rank == 0:
        follow = "there is no checkpoint" if last is None else f"the same command goes on from {last}"
        print(f"grsgd: {reason}: {follow}", file=sys.stderr, flush=True)
    loop.recovery.ended()
    loop.beside.close()
    loop.kept.close()
    loop.distributed.give_up()
    raise EndedBySignal(reason, has_checkpoint=last is not None)


@contextmanager
def signals_ask(loop) -> Iterator[None]:
    """Let signals ask for checkpoints of ``loop`` in the block, if it takes any.

    After SIGUSR2 all ranks take a checkpoint and go on. After Ctrl-C, SIGTERM and SIGUSR1 all ranks take a checkpoint
    and stop. If the script has its own handler for one of these signals, or runs the loop in a thread, signals keep
    their effect.
    """
    ask = loop.recovery.asks_for_checkpoint
    handlers = map(signal.getsignal, [*REASONS, CHECKPOINT])
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    if loop.kept and is_in_main_thread and all(each in USUAL for each in handlers):
        with Interruption(ask, lambda: ask(GO_ON)):
            yield
    else:
        yield
