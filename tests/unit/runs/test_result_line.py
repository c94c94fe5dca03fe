"""What the commands say of a run in the end."""

import math

import numpy as np
import pytest

from grsgd.runs.metric import Metric
from grsgd.runs.result_line import far_below_best, result_line
from tests.support.runs import fake_run


@pytest.fixture
def run():
    run = fake_run()
    run.attributes |= {"final_test_accuracy": 0.9562, "wall_seconds": 12.34, "target_accuracy": 0.93}
    run.curve["test_accuracy"] = np.linspace(0.5, 0.95, len(run.curve["time"]))
    return run


def test_accuracy_times_and_bytes(run):
    run.curve["time"][-1] = 11.26
    run.traffic["sent"][:] = 0
    run.traffic["sent"][0, 1] = 3 * 2**19
    assert result_line(run) == "95.62 % test accuracy (93 % after 11.3 s), 12.3 s of training, 1.50 MiB sent"
    run.attributes["target_accuracy"] = 0.975
    assert result_line(run) == "95.62 % test accuracy (97.5 % not reached), 12.3 s of training, 1.50 MiB sent"
    run.attributes["target_accuracy"] = None
    assert result_line(run) == "95.62 % test accuracy, 12.3 s of training, 1.50 MiB sent"


def test_the_steps_that_took_part(run):
    run.attributes["participation"] = 1.0
    assert "took part" not in result_line(run)
    run.extra["death_rank"] = np.zeros(0)
    assert "took part" not in result_line(run)
    run.extra["death_rank"] = np.zeros(1)
    assert "s of training, 100.0 % of the steps took part, " in result_line(run)
    run.attributes["participation"] = 0.975
    assert "97.5 % of the steps took part" in result_line(run)


def test_what_was_not_measured_is_left_out(run):
    run.attributes |= {"final_test_accuracy": math.nan, "clock": "virtual", "virtual_seconds": 0.256}
    run.curve["test_accuracy"][:] = math.nan
    assert result_line(run).startswith("0.26 simulated s of training, ")


@pytest.mark.parametrize(
    ("final", "words"),
    [(0.1, "10.00 % test accuracy, worse than at its best by 85 points, 12"), (0.9, "90.00 % test accuracy, 12.3 s")],
)
def test_a_run_that_ends_far_below_its_best(run, final, words):
    run.attributes |= {"final_test_accuracy": final, "target_accuracy": None}
    assert result_line(run).startswith(words)


@pytest.mark.parametrize(
    ("metric", "best", "final", "words"),
    [
        (Metric("perplexity"), 7.25, 30.0, ["worse than at its best, which was 7.25"]),
        (Metric("perplexity"), 7.25, 8.0, []),
        (Metric("f1", higher_is_better=True), 0.9, 0.5, ["worse than at its best, which was 0.9"]),
        (Metric("f1", higher_is_better=True), 0.9, 0.95, []),
        (Metric("perplexity"), math.nan, 8.0, []),
    ],
)
def test_other_metrics_end_far_from_their_best(metric, best, final, words):
    assert far_below_best(metric, final, best) == words
