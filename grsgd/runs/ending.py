"""How a run ended, as its run file says it: the kind of end, and the reason in words."""

from enum import StrEnum

from grsgd.text import printable

STOP_CRITERIA = ("epochs", "steps", "samples", "seconds")
"""The keys of ``[train]`` that say when a run ends; it has exactly one of them, and a run that reaches it gives the key
as its reason."""

END_OF_LOOP = "end of the loop"
"""The reason of a loop that grsgd did not write, and that came to its end."""

TARGET_REACHED = "target reached"
"""The reason of a simulated run with ``train.stop_at_target`` that ended before its stop criterion."""

NON_FINITE_LOSS = "non-finite loss"
"""Beginning of the reason of a run that diverged."""
INTERRUPTED = "interrupted (Ctrl-C)"
TERMINATED = "terminated (SIGTERM)"
ASKED_TO_END = "interrupted"
"""By SIGUSR1, which ``grsgd run`` makes of Ctrl-C and SIGTERM."""


class Ended(StrEnum):
    """The kinds of ends."""

    COMPLETED = "completed"
    """It reached the stop criterion that its configuration gives, the target at which it was to stop, or the
    end of a loop that grsgd did not write."""
    DIVERGED = "diverged"
    """Its loss was no longer finite."""
    INTERRUPTED = "interrupted"
    """A signal ended it."""
    FAILED = "failed"
    """Anything else: a rank was lost or raised an exception, or waited too long."""


FINISHED = (Ended.COMPLETED, Ended.DIVERGED)
"""The ends of runs that need not be made again."""


def how_ended(reason: str) -> Ended:
    """Return the kind of end that has this reason."""
    if reason in (*STOP_CRITERIA, TARGET_REACHED, END_OF_LOOP):
        return Ended.COMPLETED
    if reason.startswith(NON_FINITE_LOSS):
        return Ended.DIVERGED
    return Ended.INTERRUPTED if reason in (INTERRUPTED, TERMINATED, ASKED_TO_END) else Ended.FAILED


def end_attributes(reason: str) -> dict[str, str]:
    """Return the attributes of a run file that say how the run ended; exceptions, which reasons quote, may have any
    text."""
    return {"ended": how_ended(reason).value, "reason": printable(reason)}


def joint_reason(reasons: list[str]) -> str:
    """Return why a run ended, by what its ranks say: some may have completed just before it was stopped."""
    return next((reason for reason in reasons if reason not in STOP_CRITERIA), reasons[0])
