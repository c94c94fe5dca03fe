"""End of a run, as its run file records it: the kind of end (completed, diverged, interrupted, failed), and the reason
as text."""

from enum import StrEnum

from grsgd.text import printable

STOP_CRITERIA = ("epochs", "steps", "samples", "seconds")
"""Keys of ``[train]`` that say when a run ends. A configuration has exactly one key of `STOP_CRITERIA`. If a run
reaches the end that a key of `STOP_CRITERIA` sets, the recorded reason is the key's name."""

END_OF_LOOP = "end of the loop"
"""Reason of the end of a run if a user's own training loop came to its end."""

TARGET_REACHED = "target reached"
"""Reason of the end of a simulated run with ``train.stop_at_target``, if the run reached the target before its stop
criterion."""

NON_FINITE_LOSS = "non-finite loss"
"""Beginning of the text that is recorded as the reason of the end of a run that diverged."""
INTERRUPTED = "interrupted (Ctrl-C)"
TERMINATED = "terminated (SIGTERM)"
"""Beginning of the text that is recorded as the reason of the end of a run after SIGTERM. After the text `TERMINATED`,
the reason may name hosts that did not answer."""
ASKED_TO_END = "interrupted"
"""Reason of the end of a run after SIGUSR1. ``grsgd run`` sends SIGUSR1 to the ranks in place of Ctrl-C and SIGTERM."""


class Ended(StrEnum):
    """Ways in which a run can end."""

    COMPLETED = "completed"
    """The run reached its stop criterion, the target at which it had to stop, or the end of a user's own loop."""
    DIVERGED = "diverged"
    """The loss of the run was no longer finite."""
    INTERRUPTED = "interrupted"
    """A signal ended the run."""
    FAILED = "failed"
    """The run failed: a rank died, raised an exception, or waited too long."""


FINISHED = (Ended.COMPLETED, Ended.DIVERGED)
"""Kinds of ends after which a run need not be repeated."""


def how_ended(reason: str) -> Ended:
    """Return the kind of end of a run that ended for ``reason``."""
    if reason in (*STOP_CRITERIA, TARGET_REACHED, END_OF_LOOP):
        return Ended.COMPLETED
    if reason.startswith(NON_FINITE_LOSS):
        return Ended.DIVERGED
    is_signal = reason in (INTERRUPTED, ASKED_TO_END) or reason.startswith(TERMINATED)
    return Ended.INTERRUPTED if is_signal else Ended.FAILED


def end_attributes(reason: str) -> dict[str, str]:
    """Return the attributes of a run file that record the end of the run. Characters of the reason that cannot be
    printed are replaced, because the reason may quote any exception."""
    return {"ended": how_ended(reason).value, "reason": printable(reason)}


def joint_reason(reasons: list[str]) -> str:
    """Return the reason of a run's end from its ranks' ``reasons``. If some ranks were stopped after other ranks had
    completed, return the reason of the stop."""
    return next((reason for reason in reasons if reason not in STOP_CRITERIA), reasons[0])
