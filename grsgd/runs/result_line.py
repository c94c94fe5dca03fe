"""The result of a run, in a line."""

import math

from grsgd.runs.measures import bytes_sent, is_virtual, seconds, time_to_target
from grsgd.runs.metric import final_of, metric_of, target_of
from grsgd.runs.numbers import human_bytes, number
from grsgd.runs.run_file import Run


def result_line(run: Run) -> str:
    """Return the metric of the averaged model, the time to the target, the time that training took, and the
    bytes that all ranks have sent, as far as the run has them: the numbers of `grsgd report`."""
    metric, final, target = metric_of(run), final_of(run), target_of(run)
    unit = "simulated s" if is_virtual(run) else "s"
    parts = []
    if not math.isnan(final):
        parts.append(metric.sentence(final))
        if not math.isnan(target):
            reached = time_to_target(run)
            when = "not reached" if math.isnan(reached) else f"after {number(reached)} {unit}"
            parts[0] += f" ({metric.chosen(target)} {when})"
    sent = [f"{human_bytes(bytes_sent(run))} sent"] if run.attributes["ranks"] > 1 else []
    return ", ".join([*parts, f"{number(seconds(run))} {unit} of training", *sent])
