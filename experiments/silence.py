"""The time per step that CSSGD saves over all-reduce if steps do not wait for the slowest (silent) ranks.

    python -m experiments.silence                      # in simulated time, 8 ranks
    python -m experiments.silence --clock --ranks 4    # in real time, where a step is a pause

The compared runs have three kinds of stragglers: ranks whose steps vary, ranks whose steps sometimes take a second
longer, and one slow rank. The printed table also has the least possible time of a step, which is
`coding.time_model.mean_step_seconds` of the ranks' computing times, without messages. With s silent ranks, a step of n
ranks ends when the (n - s)-th rank has finished its computing. With redundancy r, each rank computes r times as long
as without redundancy. An all-reduce along a ring waits for all ranks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from coding.time_model import mean_step_seconds
from experiments.arguments import parse_once
from grsgd import load_run
from grsgd.config import parse
from grsgd.mpi_environment import find_mpiexec, job_environment, module
from grsgd.simulator.compute import ComputeTime
from grsgd.simulator.network import network
from grsgd.simulator.simulation import Simulation
from grsgd.training.stragglers import DelayModel

STEP = 0.1
"""Seconds in which a rank computes in a step, without redundancy."""
KINDS = {
    "steps vary by 30 %": (0.3, lambda ranks: {}),
    "1 s longer, in a tenth of the steps": (
        0.05,
        lambda ranks: {"tail": {str(rank): {"probability": 0.1, "seconds": 1.0} for rank in range(ranks)}},
    ),
    "one rank 4 times slower": (0.05, lambda ranks: {"slowdown": {"1": 4.0}}),
}
"""Kinds of stragglers by name.

A kind of stragglers has the standard deviation of the logarithm of a step's time, and the section [stragglers] of the
configuration.
"""
TOLERANT = [(2, 1), (3, 1), (3, 2), (4, 3)]
"""The compared pairs of a redundancy r and a number s of silent ranks."""


def algorithm(r: int, s: int) -> dict:
    """Return the section [algorithm] of a configuration for CSSGD; redundancy r = 1 stands for the all-reduce."""
    if r == 1:
        return {"name": "ring_allreduce"}
    return {"name": "cssgd", "scheme": "tolerant", "r": r, "silent": s}


def content(r: int, s: int, ranks: int, steps: int, stragglers: dict) -> dict:
    """Return all sections of a configuration, whose model has 50 kB."""
    return {
        "algorithm": algorithm(r, s),
        "model": {"name": "mlp", "hidden": [160]},
        "data": {"name": "digits", "batch_size": 8},
        "optimizer": {"lr": 0.1},
        "train": {"steps": steps, "snapshots": 1},
        "comm": {"timeout": 60.0},
        "stragglers": stragglers,
    }


def simulated(r: int, s: int, ranks: int, steps: int, sigma: float, stragglers: dict) -> tuple[float, float]:
    """Simulate a training on gigabit Ethernet; return how long a step takes, and how long a rank waits in it."""
    config = parse(content(r, s, ranks, steps, stragglers))
    job = Simulation(config, ranks, network("1gbit,50us"), f"lognormal:{STEP},{sigma}", timing_only=True)
    job.train()
    waited = sum(trainer.totals.wait_seconds for trainer in job.trainers) / ranks
    return job.seconds() / steps, waited / steps


def measured(r: int, s: int, ranks: int, steps: int, sigma: float, stragglers: dict) -> tuple[float, float]:
    """Train in real time; return the seconds of a step, and the seconds that a rank waits in it.

    Instead of computing, a rank pauses for r times 0.1 s.
    """
    pause = {str(rank): {"every": 1, "seconds": r * STEP} for rank in range(ranks)}
    config = content(r, s, ranks, steps, {"pause": pause} | stragglers)
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "run.toml"), Path(folder, "run.h5")
        path.write_text(toml(config))
        command = [find_mpiexec(), "-n", ranks, *module("grsgd"), "train", path, "--out", out]
        done = subprocess.run(
            [str(word) for word in command], env=job_environment(), capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        run = load_run(out)
    return float(run.curve["time"][-1]) / steps, float(run.ranks["wait_seconds"].mean()) / steps


def toml(sections: dict) -> str:
    """Return a configuration as TOML text.

    ``sections``: values are numbers, texts, lists, or tables of tables.
    """
    lines = []
    for name, section in sections.items():
        plain = {key: value for key, value in section.items() if not isinstance(value, dict)}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
        for key, table in section.items():
            if key not in plain:
                lines.append(f"[{name}.{key}]")
                lines += [f"{rank} = {value_of(each)}" for rank, each in table.items()]
    return "\n".join(lines) + "\n"


def value_of(value) -> str:
    """Return ``value`` as TOML text: a number, a text, a list, or a table on one line."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{ " + ", ".join(f"{key} = {json.dumps(each)}" for key, each in value.items()) + " }"


def least(r: int, s: int, ranks: int, steps: int, sigma: float, stragglers: dict) -> float:
    """Return the least possible seconds of a step with redundancy r and s silent ranks, without messages."""
    config = parse(content(r, s, ranks, steps, stragglers))
    compute = ComputeTime(STEP, sigma, seed=config.seed)
    delays = [DelayModel(config.stragglers, rank, config.seed) for rank in range(ranks)]
    own = [[r * compute(rank, step) for rank in range(ranks)] for step in range(steps)]
    taken = [
        [seconds + delay.delay(step, seconds) for delay, seconds in zip(delays, each, strict=True)]
        for step, each in enumerate(own)
    ]
    return mean_step_seconds(taken, silent=s)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="number of steps per run (default: %(default)s)")
    parser.add_argument("--clock", action="store_true", help="measure in real time, not in simulated time")
    options = parse_once(parser)
    rows = []
    for kind, (sigma, stragglers_of) in KINDS.items():
        sigma, stragglers = 0.0 if options.clock else sigma, stragglers_of(options.ranks)
        if options.clock and "tail" not in stragglers:
            continue  # pauses have no random part, and cannot be longer on one rank
        for r, s in [(1, 0), *((r, s) for r, s in TOLERANT if r <= options.ranks)]:
            given = r, s, options.ranks, options.steps, sigma, stragglers
            seconds, waited = (measured if options.clock else simulated)(*given)
            name = "ring_allreduce" if r == 1 else f"tolerant, r = {r}, s = {s}"
            rows.append([kind, name, *(f"{1e3 * each:.0f}" for each in (seconds, waited, least(*given)))])
            print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    header = ["stragglers", "algorithm", "a step [ms]", "of it waiting", "least possible"]
    print(tabulate(rows, header, tablefmt="pipe", disable_numparse=True, colalign=["left"] * 2 + ["right"] * 3))


if __name__ == "__main__":
    main()
