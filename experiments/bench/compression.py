"""Benchmark of the compression of vectors against a copy of the vector, on one core or a GPU.

For each compressor, the table has the seconds to encode a vector, with and without error feedback, and the seconds to
decode the vector. The last column is the link rate at which encoding takes as long as sending the bytes that
compression saves.
"""

import numpy as np
import torch

from experiments.bench.side_by_side import announce, complete, device, median_and_range, report, start, take_turns
from grsgd.comm.compression.compressors import COMPRESSORS, CompressionOptions, make_compressor
from grsgd.comm.compression.error_feedback import ErrorFeedback
from grsgd.models.flat import Flat

VALUES = {"cpu": 4 << 20, "cuda": 64 << 20}
"""Number of float32 values of each vector, by device of torch."""
ROUNDS = 10


def main():
    mpi, quick = start()
    on = device()
    values = 1 << 16 if quick else VALUES[on.type]
    announce(mpi, f"compression: vectors of {values} float32 values")
    x, copy = (Flat.zeros(values, torch.float32, on) for _ in range(2))
    x.tensor.normal_(generator=torch.Generator(on).manual_seed(0))
    contenders = {"copy": lambda: copy.tensor.copy_(x.tensor)}
    nbytes = {}
    for name in COMPRESSORS:
        compressor = make_compressor(CompressionOptions(compression=name), x.tensor)
        payload, feedback, nbytes[name] = compressor.payload(), ErrorFeedback(compressor, (0, 0)), compressor.nbytes
        compressor.encode(x.tensor, payload.tensor, (0, 0, 0))
        contenders[f"encode {name}"] = encode(compressor, x, payload)
        contenders[f"encode {name}, error feedback"] = feed_back(feedback, x, compressor.payload())
        contenders[f"decode {name}"] = decode(compressor, payload, copy)
    contenders = {name: complete(call, on) for name, call in contenders.items()}
    take_turns(mpi, contenders, 2)
    seconds = take_turns(mpi, contenders, 2 if quick else ROUNDS)
    whole, rows = np.median(seconds["copy"]), []
    for name, taken in seconds.items():
        kind = name.split(",")[0].split(" ")[-1]
        wire = ""
        if name.startswith("encode"):
            saved = 4 * values - nbytes[kind]
            wire = f"{8e-9 * saved / np.median(taken):.1f}" if saved > 0 else ""
        each = np.array(taken) / values * 1e9
        rows.append([name, median_and_range(each, ".2f"), f"{np.median(taken) / whole:.1f}", wire])
    headers = ["", "ns a value", "times a copy", "takes as long as its bytes save at Gbit/s"]
    where = "one core" if on.type == "cpu" else "a GPU"
    report(mpi, f"Compression on {where}, median (min-max)", headers, rows)


def encode(compressor, x, payload):
    return lambda: compressor.encode(x.tensor, payload.tensor, (0, 0, 0))


def feed_back(feedback, x, payload):
    return lambda: feedback.encode(x.tensor, payload.tensor, 0)


def decode(compressor, payload, out):
    return lambda: compressor.decode(payload.tensor, out.tensor)


if __name__ == "__main__":
    main()
