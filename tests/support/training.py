"""Configurations and simulations of whole trainings of a small model, for tests in simulated time."""

from grsgd.config import parse
from grsgd.simulator.simulation import Simulation
from grsgd.testing.simulated import network_of

STEP = 0.01
"""Seconds of simulated time per step of a rank."""
CONSTANT = f"constant:{STEP}"
MODEL_BYTES = 4 * (16 * 2 + 2)
SLOW = dict(bandwidth="1 mbit", latency="1 ms", eager_bytes=64)
"""A slow network for tests. A message with a model takes about a tenth of a step, and is so long that MPI would use a
rendezvous."""


def config(algorithm, steps=8, **sections):
    """Return the configuration of a training of a linear classifier with 34 parameters on images of 4 x 4 pixels.

    ``algorithm``: the name of an algorithm, or a section ``[algorithm]`` as a dictionary.
    """
    content = {
        "algorithm": algorithm if isinstance(algorithm, dict) else {"name": algorithm},
        "model": {"name": "mlp", "hidden": []},
        "data": {"name": "synthetic", "samples": 60, "shape": [1, 4, 4], "classes": 2, "batch_size": 4},
        "optimizer": {"lr": 0.05, "momentum": 0.9},
        "train": {"steps": steps, "snapshots": 4},
        "device": "cpu",
    }
    if "name" not in sections.get("data", {"name": None}):  # the given section only changes keys of the section above
        sections["data"] = content["data"] | sections["data"]
    return parse(content | sections)


def simulation(algorithm, ranks, network=None, compute=CONSTANT, timing_only=False, **sections):
    """Return a simulation of `config`, by default on a slow network with steps of constant duration."""
    return Simulation(config(algorithm, **sections), ranks, network or network_of(**SLOW), compute, timing_only)
