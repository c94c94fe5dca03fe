"""A job's own part: run after run, each announced on the job's output."""

import torch

from grsgd.algorithms import ALGORITHMS, lasgd
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.job import launch
from tests.stress import own_loops
from tests.stress.draw import OwnLoop, Training, drawn
from tests.stress.training import train


def inside(seeds: list[int]):
    """Make these runs on every rank, all for as many ranks as there are."""
    torch.set_num_threads(1)
    world = launch.world()
    launch.abort_on_error(world)
    # The first gradient of a process takes up to a second, which a straggler would multiply.
    torch.nn.functional.cross_entropy(torch.nn.Linear(4, 2)(torch.ones(3, 4)), torch.zeros(3, dtype=int)).backward()
    lasgd.IDLE_SECONDS = 0.05  # so that ranks in a barrier soon join the rounds that others wait for
    kept, compiled = [], set()
    for seed in seeds:
        run, rest = drawn(seed), None
        if world.rank == 0:
            print("begin", seed, flush=True)
        if isinstance(run, OwnLoop):
            own_loops.run(world, run)
        else:
            compile_kernels(world, run, compiled)
            rest = train(world, run.config, run.stop)
        if rest is not None:
            kept.append(rest)
        if world.rank == 0:
            print("end", seed, "early" if rest is not None else "", flush=True)
    if kept:
        launch.exit_job(world, 0)


def compile_kernels(world, run: Training, compiled: set):
    """One step without stragglers: kernels are compiled in the first gradient."""
    options = run.config["algorithm"]
    kernels = options["name"], options.get("scheme"), options.get("accounting"), run.config["dtype"]
    if issubclass(ALGORITHMS[options["name"]], CommonBatchAlgorithm) and kernels not in compiled:
        train(world, run.config | {"stragglers": {}, "train": {"steps": 1}}, None)
        compiled.add(kernels)
