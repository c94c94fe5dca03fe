"""Benchmark of fixed-point numbers and coded packets against a copy of an array, on one core or a GPU.

The results are rates in bytes per second, which count the bytes read and the bytes written. The arrays are larger than
any cache of the processor.
"""

import time

import numpy as np
import torch

from coding import fixed_point
from coding.codec import Codec
from coding.placement import subset_placement
from coding.plan import packet_plan
from experiments.bench.side_by_side import announce, complete, device, median_and_range, report, start, take_turns
from grsgd.models.flat import Flat

MIB = 1 << 20
SIZE = {"cpu": 128, "cuda": 512}
"""Size of each array in MiB, by device of torch."""
ROUNDS = 20
N, R = 4, 3
"""Number of ranks, and redundancy (number of ranks that compute each block), of the timed packets."""
PLANS = ((10, 3), (20, 3), (20, 5))
"""Pairs of the number of ranks and the redundancy for which the making of the packet plan is timed."""


def main():
    mpi, quick = start()
    on = device()
    words = (1 if quick else SIZE[on.type]) * MIB // 4
    rows = []
    announce(mpi, f"codec: arrays of {words * 4 // MIB} MiB")
    contenders, arrays = calls(words, on)
    take_turns(mpi, contenders, 2)
    seconds = take_turns(mpi, contenders, 2 if quick else ROUNDS)
    rate = {name: arrays[name] * words * 4 / taken / 1e9 for name, taken in seconds.items()}
    copy = np.median(rate["copy"])
    for name, found in rate.items():
        rows.append([name, arrays[name], median_and_range(found, ".1f"), f"{np.median(found) / copy:.0%}"])
    headers = ["", "arrays read and written", "GB/s", "of the copy"]
    where = "one core" if on.type == "cpu" else "a GPU"
    report(mpi, f"Fixed point and packets on {where}, median (min-max)", headers, rows)
    rows = [[f"n = {n}, r = {r}", *plan_seconds(n, r)] for n, r in (PLANS[:1] if quick else PLANS)]
    report(mpi, "Packet plans: seconds, and packets that a rank sends in a step", ["", "s", "packets"], rows)


def plan_seconds(n: int, r: int) -> tuple[str, int]:
    """Return the seconds in which a rank plans the packets of a step, and the number of packets that it sends."""
    packet_plan.cache_clear()
    subset_placement.cache_clear()
    begin = time.perf_counter()
    plan = packet_plan(n, r)
    sent, _ = list(plan.sent(0)), list(plan.received(0))
    return f"{time.perf_counter() - begin:.3f}", len(sent)


def calls(words: int, on: torch.device) -> tuple[dict, dict[str, int]]:
    """Return the functions to time, by name, and how many arrays of ``words`` words each reads and writes."""
    plan = packet_plan(N, R)
    codec = Codec(plan, 0, R * words)
    out_going, incoming = next(plan.sent(0)), next(plan.received(0))
    random = torch.Generator(on).manual_seed(0)
    own = Flat.zeros(len(codec.own) * R * words, torch.int32, on)
    own.tensor.random_(generator=random)
    x, copy = (Flat.zeros(words, torch.float32, on) for _ in range(2))
    x.tensor.normal_(generator=random)

    def plain_copy():
        if on.type == "cuda":
            copy.tensor.copy_(x.tensor)
        else:
            np.copyto(copy.array, x.array)

    own = own.array.reshape(len(codec.own), -1)
    packet, q = (Flat.zeros(words, torch.int32, on).array for _ in range(2))
    total = Flat.zeros(words, torch.int64, on).array
    fixed = fixed_point.FixedPoint()
    contenders = {
        "copy": (plain_copy, 2),
        "quantise": (lambda: fixed.encode(x.array, q), 2),
        "dequantise": (lambda: fixed.decode(q, copy.array), 2),
        "accumulate in int64": (lambda: fixed_point.accumulate(total, q), 5),
        f"encode a packet, r = {R}": (lambda: codec.encode(out_going, own, packet), R + 1),
        f"decode a packet, r = {R}": (lambda: codec.decode(incoming, packet, own, packet), R + 1),
    }
    return {name: complete(call, on) for name, (call, _) in contenders.items()}, {
        name: count for name, (_, count) in contenders.items()
    }


if __name__ == "__main__":
    main()
