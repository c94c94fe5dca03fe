"""What a run has come to, in a line."""

import math

from grsgd.runs.measures import bytes_sent, is_virtual, seconds, target_accuracy, time_to_target
from grsgd.runs.numbers import human_bytes, number, per_cent
from grsgd.runs.run_file import Run


def result_line(run: Run) -> str:
    """Return the test accuracy of the averaged model, the time to the target, the time that training took, and the
    bytes that all ranks have sent, as far as the run has them: the numbers of `grsgd report`."""
    accuracy, target = run.attributes["final_test_accuracy"], target_accuracy(run)
    unit = "simulated s" if is_virtual(run) else "s"
    parts = []
    if not math.isnan(accuracy):
        parts.append(f"{per_cent(accuracy)} % test accuracy")
        if not math.isnan(target):
            reached = time_to_target(run)
            when = "not reached" if math.isnan(reached) else f"after {number(reached)} {unit}"
            parts[0] += f" ({100 * target:g} % {when})"
    sent = [f"{human_bytes(bytes_sent(run))} sent"] if run.attributes["ranks"] > 1 else []
    return ", ".join([*parts, f"{number(seconds(run))} {unit} of training", *sent])
