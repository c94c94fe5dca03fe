"""The least time of a server's update, and how far from it a run was."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from grsgd.cli import main
from grsgd.runs.bound import optimal_seconds, time_over_optimum
from tests.support.runs import fake_run


@pytest.mark.parametrize("seed", range(30))
def test_is_the_smallest_time_in_which_there_are_so_many_gradients(seed):
    rng = np.random.default_rng(seed)
    speeds, gradients = rng.integers(1, 20, rng.integers(1, 8)) / 4, int(rng.integers(1, 60))
    ends = sorted({k * h for h in speeds for k in range(1, gradients + 1)})
    there_are = [sum(math.floor(t / h) for h in speeds) for t in ends]
    smallest = next(t for t, count in zip(ends, there_are, strict=True) if count >= gradients)
    assert optimal_seconds(speeds.tolist(), gradients) == smallest


def test_more_gradients_or_slower_workers_take_longer():
    times = [optimal_seconds([0.1, 0.1, 0.1, 1.0], gradients) for gradients in range(1, 80)]
    assert all(a <= b for a, b in pairwise(times)) and times[2] == 0.1 and times[3] == 0.2 and times[30] == 1.0
    assert optimal_seconds([0.1, 0.1, 0.1], 31) > 1.0


@pytest.mark.parametrize(
    "speeds, gradients", [([], 1), ([0.0], 1), ([1.0, math.inf], 1), ([math.nan], 1), ([1.0], 0), ([-1.0], 1)]
)
def test_refuses_what_cannot_be(speeds, gradients):
    with pytest.raises(ValueError):
        optimal_seconds(speeds, gradients)


def test_time_over_optimum():
    """A step takes 30 s / 20; in 50 s the model got 4000 / 32 gradients."""
    run = fake_run(bound_gradients=4)
    assert time_over_optimum(run) == pytest.approx(4 * 50 / 125 / 1.5)
    run.ranks["compute_seconds"][3] *= 10
    assert time_over_optimum(run) == pytest.approx(4 * 50 / 125 / 3.0)
    run.ranks["steps"][3] = 0  # it serves
    assert time_over_optimum(run) == pytest.approx(4 * 50 / 125 / 3.0)


def test_not_known_without_a_server_or_steps():
    assert math.isnan(time_over_optimum(fake_run()))
    assert math.isnan(time_over_optimum(fake_run(bound_gradients=4, snapshots=1)))
    recorded = fake_run(bound_gradients=4)
    del recorded.attributes["batch_size"]
    assert math.isnan(time_over_optimum(recorded)), "a loop of one's own need not have a batch size"
    run = fake_run(bound_gradients=4)
    run.ranks["compute_seconds"][:] = 0.0
    assert math.isnan(time_over_optimum(run))


def bound(capsys, *arguments):
    assert main(["bound", "experiments/demo/parameter_server.toml", "--ranks", "5", *arguments]) == 0
    return capsys.readouterr().out


def test_command(capsys):
    slow = ["--set", "stragglers.slowdown.3=10.0", "--compute", "constant:0.1"]
    out = bound(capsys, *slow, "--set", "algorithm.strategy=rennala")
    assert "parameter_server rennala, 4 workers; times of 4 gradients" in out and "0.1 s, 0.1 s, 0.1 s, 1 s" in out
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert rows["optimal"].split()[0] == "0.2" and rows["all wait for all"].split()[0] == "1"
    assert float(rows["nobody waits"].split()[0]) == pytest.approx(4 / 31, rel=1e-2)
    out = bound(capsys, "--step-seconds", "0.1,0.1,0.1,1.0", "--gradients", "7")
    assert "parameter_server adsp, 4 workers; times of 7 gradients" in out and "optimal              0.3 s" in out


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--step-seconds", "0.1,x"], r"--step-seconds '0.1,x': must be numbers above 0"),
        (["--step-seconds", "0.1,0.1"], r"2 step times given, but 3 of 4 ranks train"),
        (["--step-seconds", "0.1,0.1,0"], r"must be numbers above 0"),
        (["--gradients", "0"], r"--gradients 0: must be 1 or more"),
        (["--compute", "constant:0"], r"a step takes no time"),
        (["--compute", "constant:1", "--step-seconds", "1,1,1"], r"only one of them"),
        (["--set", "algorithm={name='ring_allreduce'}"], r"ring_allreduce has no least time of an update; allowed: "),
    ],
)
def test_command_says_what_is_wrong(arguments, says, capsys):
    assert main(["bound", "experiments/demo/parameter_server.toml", *arguments]) == 2
    assert re.search(says, capsys.readouterr().err)
