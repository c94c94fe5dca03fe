"""Fixed point and packets against memcpy on one core: bytes read and written a second, of arrays beyond any cache."""

import time

import numpy as np

from coding import fixed_point
from coding.codec import Codec
from coding.placement import subset_placement
from coding.plan import packet_plan
from experiments.bench.side_by_side import progress, report, spread, start, take_turns

MIB = 1 << 20
SIZE = 128
"""MiB of each array."""
ROUNDS = 20
N, R = 4, 3
PLANS = ((10, 3), (20, 3), (20, 5))


def main():
    mpi, quick = start()
    words = (1 if quick else SIZE) * MIB // 4
    rows = []
    progress(mpi, f"codec: arrays of {words * 4 // MIB} MiB")
    contenders, arrays = calls(words)
    take_turns(mpi, contenders, 2)
    seconds = take_turns(mpi, contenders, 2 if quick else ROUNDS)
    rate = {name: arrays[name] * words * 4 / taken / 1e9 for name, taken in seconds.items()}
    copy = np.median(rate["memcpy"])
    for name, found in rate.items():
        rows.append([name, arrays[name], spread(found, ".1f"), f"{np.median(found) / copy:.0%}"])
    headers = ["", "arrays read and written", "GB/s", "of memcpy"]
    report(mpi, "Fixed point and packets on one core, median (min-max)", headers, rows)
    rows = [[f"n = {n}, r = {r}", *plan_seconds(n, r)] for n, r in (PLANS[:1] if quick else PLANS)]
    report(mpi, "Packet plans: seconds, and packets that a rank sends in a step", ["", "s", "packets"], rows)


def plan_seconds(n: int, r: int) -> tuple[str, int]:
    """How long it takes from nothing until a rank knows all its packets, and how many it sends."""
    packet_plan.cache_clear()
    subset_placement.cache_clear()
    begin = time.perf_counter()
    plan = packet_plan(n, r)
    sent, _ = list(plan.sent(0)), list(plan.received(0))
    return f"{time.perf_counter() - begin:.3f}", len(sent)


def calls(words: int) -> tuple[dict, dict[str, int]]:
    """What to time, and how many arrays of ``words`` each reads and writes."""
    plan = packet_plan(N, R)
    codec = Codec(plan, 0, R * words)
    out_going, incoming = next(plan.sent(0)), next(plan.received(0))
    own = np.random.default_rng(0).integers(-(2**31), 2**31, (len(codec.own), R * words), dtype=np.int32)
    x = np.random.default_rng(0).standard_normal(words, np.float32)
    copy, packet, q, total = (
        np.zeros_like(x),
        np.zeros(words, np.int32),
        np.zeros(words, np.int32),
        np.zeros(words, int),
    )
    fixed = fixed_point.FixedPoint()
    contenders = {
        "memcpy": (lambda: np.copyto(copy, x), 2),
        "quantise": (lambda: fixed.encode(x, q), 2),
        "dequantise": (lambda: fixed.decode(q, copy), 2),
        "add": (lambda: fixed_point.add(q, packet), 3),
        "accumulate in int64": (lambda: fixed_point.accumulate(total, q), 5),
        f"encode a packet, r = {R}": (lambda: codec.encode(out_going, own, packet), R + 1),
        f"decode a packet, r = {R}": (lambda: codec.decode(incoming, packet, own, packet), R + 1),
    }
    return {name: call for name, (call, _) in contenders.items()}, {
        name: count for name, (_, count) in contenders.items()
    }


if __name__ == "__main__":
    main()
