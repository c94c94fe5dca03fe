"""Benchmark of the cost of a background thread that stands ready to move messages; the cost should be zero.

Equal training steps are timed with and without the background thread. With the thread, too, the training loop itself
moves messages (``inline``), and polls them at a rate at which the thread has nothing to do.
"""

from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

import grsgd
from experiments.bench.side_by_side import announce, interval, median_and_range, report, slowest, start, turns
from experiments.bench.training import MODELS, chosen, make_batches, mlp, sgd
from grsgd.algorithms import ALGORITHMS

STEPS, ROUNDS = {"0.8 MiB": 150, "22 MiB": 15}, 15


def main():
    mpi, quick = start()
    rows = []
    for size, widths in chosen(MODELS, quick):
        batches = make_batches(mpi.rank)
        for algorithm in algorithms():
            announce(mpi, f"stand-in: {size}, {algorithm}")
            seconds = {True: [], False: []}
            for with_thread in turns(seconds, 1 if quick else ROUNDS):
                taken = steps_seconds(mpi, algorithm, mlp(widths), with_thread, batches, STEPS[size])
                seconds[with_thread].append(taken)
            seconds = slowest(mpi, seconds)
            ratios = seconds[True] / seconds[False]
            rows.append([size, algorithm, median_and_range(STEPS[size] / seconds[True], ".1f"), interval(ratios)])
    headers = ["model", "algorithm", "steps/s", "time with the thread / without"]
    report(mpi, f"A thread that stands by, on {mpi.size} ranks, median (95 % interval of the median)", headers, rows)


def algorithms() -> list[str]:
    """Return the names of the algorithms that are timed.

    The timed algorithms send in the background, and each of their ranks computes one gradient per step.
    """
    traits = {name: cls.traits for name, cls in sorted(ALGORITHMS.items())}
    return [name for name, its in traits.items() if its.in_background and not its.decides_who_computes]


def steps_seconds(mpi, algorithm: str, model, with_thread: bool, batches, steps: int) -> float:
    """Return the seconds that ``steps`` steps of a new training take, with or without the background thread."""
    optimizer = grsgd.distribute(model, sgd(model.parameters()), algorithm, mpi, progress_mode="inline")
    optimizer.driver.thread_allowed = with_thread

    def take_steps(count):
        for step in range(count):
            x, y = batches[step % len(batches)]
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    take_steps(5)
    # A non-blocking barrier, because a rank in a blocking barrier would not answer ranks that still take steps.
    optimizer.driver.run(all_here for all_here in [mpi.Ibarrier()])
    begin = perf_counter()
    take_steps(steps)
    taken = perf_counter() - begin
    optimizer.finish()
    return taken


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
