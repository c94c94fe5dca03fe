"""Checkpoints of a loop over `grsgd.surviving` that a user requests with a signal."""

import signal
import sys
import threading

from grsgd.comm.elastic.meeting import GO_ON
from grsgd.comm.stop_signal import EndAsked
from grsgd.job.exit_code import ScriptExit
from grsgd.job.signals import CHECKPOINT, CHECKPOINTED, EXIT_CODE, raise_interrupt
from grsgd.runs.ending import ASKED_TO_END

ASKS = {CHECKPOINT: GO_ON, signal.SIGUSR1: ASKED_TO_END}
"""Dictionary from each signal that asks for a checkpoint to the reason to end the run after the checkpoint. With the
reason `GO_ON`, the run goes on.

Ctrl-C and SIGTERM do not ask for a checkpoint, because Open MPI's mpiexec kills all ranks a moment after these signals.
"""


class EndedBySignal(ScriptExit):
    """Exit of a script whose loop ends on all ranks, after a checkpoint, because of a signal."""

    def __init__(self, reason: str, has_checkpoint: bool):
        super().__init__(CHECKPOINTED if has_checkpoint else EXIT_CODE)
        self.reason = reason


class AskingSignals:
    """Handlers of the signals that ask for checkpoints of ``loop``. The handlers are active from `begin` to `close`.

    If the script has its own handler for a signal that asks for checkpoints, or runs the loop in a thread, no handler
    is replaced.
    """

    def __init__(self, loop):
        self.loop = loop
        self._before: dict[int, object] = {}

    @property
    def is_on(self) -> bool:
        """Whether a signal that arrives now asks for a checkpoint."""
        return bool(self._before)

    def begin(self):
        """Replace the signal handlers, if the loop takes checkpoints."""
        before = {number: signal.getsignal(number) for number in ASKS}
        is_in_main_thread = threading.current_thread() is threading.main_thread()
        if self.loop.kept and is_in_main_thread and set(before.values()) <= {signal.SIG_DFL, raise_interrupt}:
            self._before = before
            for number in ASKS:
                signal.signal(number, self._ask)

    def _ask(self, number, frame):
        self.loop.recovery.asks_for_checkpoint(ASKS[number])

    def close(self):
        """Restore the former signal handlers."""
        while self._before:
            signal.signal(*self._before.popitem())


def run(loop, schedule):
    """Run a schedule of ``loop``. Raises EndedBySignal if all ranks stop after a checkpoint that a signal asked for."""
    try:
        loop.driver.run(schedule)
    except EndAsked as asked:
        end_by_signal(loop, str(asked))


def end_by_signal(loop, reason: str):
    """End a loop between two iterations, on all ranks, after the checkpoint that a signal has asked for.

    The lowest rank that has a process prints from which checkpoint a later job goes on. Raises EndedBySignal.
    """
    last, membership = loop.recovery.last, loop.lives.membership
    lowest = next(holder for holder in membership.holders if holder in membership.training)
    if lowest == membership.process:
        follow = "there is no checkpoint" if last is None else f"the same command goes on from {last}"
        print(f"grsgd: {reason}: {follow}", file=sys.stderr, flush=True)
    loop.recovery.ended()
    loop.close()
    loop.distributed.give_up()
    raise EndedBySignal(reason, has_checkpoint=last is not None)
