"""Run a script with a loop over `grsgd.surviving`, and end processes by SIGKILL at given moments of the loop.

    python -m experiments.survival.mortal --die 0:0.31,4:0.62 experiments/demo/gpt.py --algorithm grsgd

The script that is run needs no changes. Each process that is alive at the end of the script's loop prints the seconds
that the loop took.
"""

import argparse
import runpy
import sys
import threading
import time
from functools import partial
from pathlib import Path

import grsgd
from experiments.survival.loop import deaths, die_after
from grsgd.mpi_environment import rank as process

LONGEST_DELAY = 0.05
"""Greatest number of seconds from the beginning of an iteration until a process is killed in this iteration."""


def mortal(items, share: float):
    """Yield ``items``, and kill this process during the iteration after the fraction ``share`` of the items."""
    last = share * len(items)
    for number, item in enumerate(items):
        if number == int(last):
            threading.Thread(target=die_after, args=(last % 1 * LONGEST_DELAY,), daemon=True).start()
        yield item


def timed(items):
    """Yield ``items``, and print the seconds from the first item until the last item is done."""
    began = time.perf_counter()
    yield from items
    print(f"loop: {time.perf_counter() - began:.3f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--die", type=deaths, default="", help="PROCESS:SHARE,...: deaths, as shares of the loop")
    parser.add_argument("script")
    options, sys.argv[1:] = parser.parse_known_args()
    surviving, share = grsgd.surviving, options.die.get(process())
    die = (lambda items: items) if share is None else partial(mortal, share=share)
    grsgd.surviving = lambda optimizer, items, **state: surviving(optimizer, timed(die(items)), **state)
    sys.argv[0] = options.script
    sys.path.insert(0, str(Path(options.script).parent))
    runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
