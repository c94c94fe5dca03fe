"""Result of a run as one line of text, printed at the end of ``grsgd train`` and ``grsgd simulate``."""

import math

from grsgd.runs.measures import best, bytes_sent, is_virtual, participation, seconds, time_to_target
from grsgd.runs.metric import Metric, final_of, metric_of, target_of
from grsgd.runs.numbers import human_bytes, number, share
from grsgd.runs.run_file import Run

FAR_POINTS = 10.0
"""Smallest difference in percentage points by which a final value counts as far worse than the run's best value."""
FAR_PART = 1 / 3
"""Smallest difference, as a fraction of the larger value, by which a final value counts as far worse than the best
value. `FAR_PART` applies to metrics that are not in per cent."""


def result_line(run: Run) -> str:
    """Return a line with the metric of the final averaged model, the time to the target, the training time, and the
    bytes that all ranks have sent. The numbers are equal to the numbers of `grsgd report`. Unknown numbers are left
    out. The participation (share of the steps that entered the model) is included if it is below 1, or if the run has
    lost processes."""
    metric, final, target = metric_of(run), final_of(run), target_of(run)
    unit = "simulated s" if is_virtual(run) else "s"
    parts = []
    if not math.isnan(final):
        parts.append(metric.sentence(final))
        if not math.isnan(target):
            reached = time_to_target(run)
            when = "not reached" if math.isnan(reached) else f"after {number(reached)} {unit}"
            parts[0] += f" ({metric.chosen(target)} {when})"
        parts += far_below_best(metric, final, best(run))
    part, attributes = participation(run), run.attributes
    has_lost = attributes.get("lost") or attributes.get("restarts") or len(run.extra.get("death_rank", ()))
    taking_part = [f"{share(part)} % of the steps took part"] if part < 1 or (has_lost and part == 1) else []
    sent = [f"{human_bytes(bytes_sent(run))} sent"] if run.attributes["ranks"] > 1 else []
    return ", ".join([*parts, f"{number(seconds(run))} {unit} of training", *taking_part, *sent])


def far_below_best(metric: Metric, final: float, best: float) -> list[str]:
    """If the final value is far worse than the run's best value, return a list with one text on the difference, else an
    empty list.

    A final value that is far worse than the best value shows that training has become unstable.
    """
    gap = abs(final - best)
    if not metric.is_better(best, final):
        return []
    if metric.unit == "%":
        return [f"worse than at its best by {100 * gap:.0f} points"] if 100 * gap >= FAR_POINTS else []
    is_far = gap >= FAR_PART * max(abs(final), abs(best))
    return [f"worse than at its best, which was {metric.text(best)}"] if is_far else []
