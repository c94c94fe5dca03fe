"""Lines that commands print at the end of a run, and the exit codes of commands."""

import sys
from pathlib import Path

from grsgd.errors import RunFileError
from grsgd.job.progress_line import ProgressLine
from grsgd.text import printable

MAX_WARNINGS = 4
"""Largest number of a run's warnings that are printed at its end."""


def announce(out: Path, line: ProgressLine):
    """Print the run's warnings, the transport and the redundancy that the run has chosen, and the paths of saved
    models. Print the path of the run file and, after a colon, the result of the run, with the reason if the run ended
    early. Pass the run's curve (values at its snapshots) to the loggers of ``line``."""
    from grsgd.runs.ending import Ended
    from grsgd.runs.loggers import log_curve
    from grsgd.runs.result_line import result_line
    from grsgd.runs.run_file import load_run

    run = load_run(out)
    log_curve(run, line)
    line.conclude(run)
    line.clear()
    attributes = run.attributes
    for reason in ("transport", "redundancy"):
        if reason in attributes:
            print(attributes[reason], file=sys.stderr, flush=True)
    warnings = attributes.get("warnings", [])
    for warning in warnings[:MAX_WARNINGS]:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if len(warnings) > MAX_WARNINGS:
        print(f"warning: {len(warnings) - MAX_WARNINGS} more in {out}", file=sys.stderr, flush=True)

    for name, what in (("model_file", "final model"), ("best_model_file", "best model")):
        if name in attributes:
            print(f"{what}: {attributes[name]}", file=sys.stderr, flush=True)
    if attributes["ended"] == Ended.COMPLETED:
        print(f"{out}: {result_line(run)}", flush=True)
    else:
        print(f"{out}: stopped early: {attributes['reason']}: {result_line(run)}", file=sys.stderr, flush=True)


def exit_code(reason: str, checkpoint: Path | None = None) -> int:
    """Return the exit code of a run that ended for ``reason``. ``checkpoint`` is the run's last checkpoint, from which
    ``--resume`` goes on, or None."""
    from grsgd.job.signals import CHECKPOINTED, EXIT_CODE
    from grsgd.runs.ending import Ended, how_ended

    interrupted = CHECKPOINTED if checkpoint else EXIT_CODE
    return {Ended.COMPLETED: 0, Ended.INTERRUPTED: interrupted}.get(how_ended(reason), 1)


class SkippedFiles:
    """Handler of the errors of run files that cannot be read, which prints each error and sets ``exit_code`` to 1."""

    exit_code = 0

    def __call__(self, error: RunFileError):
        print_error(error)
        self.exit_code = 1


def print_error(error):
    """Print ``error`` on stderr in one line that begins with "grsgd: error:"."""
    print(f"grsgd: error: {printable(str(error))}", file=sys.stderr, flush=True)
