"""Benchmark of a training step in the loops of Lightning, Fabric, Accelerate, Transformers and plain torch.

Each loop trains the same model in three ways: each rank without communication, by DDP over gloo, and by grsgd. For
each way to train, the loops take turns, a block of steps each. A second plain loop is the control, whose difference
from the first plain loop shows the error of the comparison.
"""

import itertools
import logging
import sys
import threading
import warnings
from functools import partial

import torch
from torch.utils.data import DataLoader, IterableDataset

from experiments.bench.side_by_side import (
    announce,
    has,
    interval,
    median_and_range,
    report,
    start,
    start_gloo,
    take_turns,
)

BLOCK = 5
"""Number of steps that a loop takes in a row, before the next loop takes its steps."""
SAMPLES, LENGTH, TOKENS = 4, 64, 128
"""Number of samples per step and rank, number of tokens per sample, and number of distinct tokens."""
WIDTH, LAYERS = 128, 4
"""Width and number of layers of the GPT-2 model, whose parameters take 3 MiB."""
SECONDS = 100
"""Approximate seconds in which all loops are measured for one way to train."""
PLAIN = "plain loop"
WAYS = "alone", "DDP", "grsgd"


def main():
    mpi, quick = start()
    if missing := [name for name in ("lightning", "accelerate", "transformers") if not has(name)]:
        announce(mpi, f"integrations: left out, because {missing[0]} is missing: pip install grsgd[bench]")
        return
    ways = [way for way in WAYS if f"--{way}" in sys.argv] or WAYS
    if "DDP" in ways:
        start_gloo(mpi)  # The next import starts a process group that DDP cannot use.
    from experiments.bench import library_loops

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    loops = {PLAIN: library_loops.plain, "plain loop again": library_loops.plain} | library_loops.BY_LIBRARY
    new_model = partial(library_loops.gpt2, WIDTH, LAYERS, TOKENS, LENGTH)
    for way in ways:
        announce(mpi, f"integrations: {way}")
        contenders = {name: Turns(partial(loop, new_model, way)) for name, loop in loops.items()}
        once = sum(sum(taken) for taken in take_turns(mpi, contenders, 2).values()) / 2
        seconds = take_turns(mpi, contenders, 2 if quick else max(15, int(SECONDS / once)))
        rows = [
            [name, median_and_range(taken / BLOCK * 1e3, ".1f"), interval(taken / seconds[PLAIN])]
            for name, taken in seconds.items()
        ]
        title = f"A step in the loop of a library, {way}, on {mpi.size} ranks, {len(seconds[PLAIN])} rounds"
        report(mpi, title, ["loop", "ms: median (min-max)", "loop / plain loop: median (95 % interval)"], rows)
        for turns in contenders.values():
            turns.end()


class Turns:
    """A training loop in a separate thread, which takes `BLOCK` steps per call of this object.

    The training loop runs until its data loader has no more batches. Between two calls, the training loop waits for
    the first batch of a block of steps.
    """

    def __init__(self, loop):
        self.begin, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, args=(loop,), daemon=True)
        self.thread.start()
        self.wait()

    def run(self, loop):
        torch.set_num_threads(1)  # torch keeps a separate number of compute threads for each thread of Python
        try:
            loop(DataLoader(Batches(self), SAMPLES))
        except BaseException as error:
            self.error = error
        self.done.release()

    def __call__(self):
        self.begin.release()
        self.wait()

    def wait(self):
        self.done.acquire()
        if self.error is not None:
            raise self.error

    def end(self):
        """Tell the training loop to end, and wait until its thread has ended."""
        self.is_over = True
        self()
        self.thread.join()


class Batches(IterableDataset):
    """An endless sequence of samples of random tokens, which stops when ``turns.end()`` is called."""

    def __init__(self, turns: Turns):
        self.turns = turns

    def __iter__(self):
        text = torch.randint(TOKENS, (16, LENGTH))
        for number in itertools.count():
            if number % (BLOCK * SAMPLES) == 0:
                self.turns.done.release()
                self.turns.begin.acquire()
                if self.turns.is_over:
                    return
            yield {"input_ids": text[number % 16], "labels": text[number % 16]}


if __name__ == "__main__":
    main()
