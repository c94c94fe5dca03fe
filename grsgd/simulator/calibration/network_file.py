"""Output of ``grsgd calibrate``: a network file (TOML) for ``grsgd simulate``, and a table for the user."""

import json
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from grsgd import __version__
from grsgd.config import Config
from grsgd.files import atomic_write
from grsgd.job import launch
from grsgd.simulator.calibration.calibrate import Calibration, StepTimes
from grsgd.simulator.calibration.pairs import LARGE_BYTES, Pair
from grsgd.simulator.network import AFTER_WAIT_SECONDS, ComputeSpec, ProcessorSpec
from grsgd.units import as_duration, as_rate

MIN_DEVIATION = 0.2
"""Relative deviation from the median above which a pair of ranks, or a rank, gets its own entry in the network file."""
OF_QUOTA = {"exchange": "for a message sent and one received", "look": "for each look for messages"}
"""Comments in the network file on the times of messages that use up a waiting rank's quota; the key is the time's
name."""
CROWDED = "With more ranks than cores, a step takes this time while its rank has a core, and more time on average."


def network_file(measured: Calibration, config: Config, command: str) -> str:
    """Return the text of a network file (TOML) for ``grsgd simulate --network``. The heading of the file quotes
    ``command``, the command line of the measurement."""
    medians = [times.median for times in measured.compute]
    compute = ComputeSpec(
        **typical(measured.compute),
        what=f"{config.model.name} on {config.data.name}, batch size {config.data.batch_size}, {config.dtype}",
    )
    ranks = len(measured.hosts)
    between = f"between ranks i and i+1 of {ranks}" if ranks > 1 else "between two ranks"
    latency = statistics.median(pair.latency for pair in measured.pairs)
    # median_high, because two of four pairs may belong to the same slow host
    bandwidth = statistics.median_high(pair.bandwidth for pair in measured.pairs)
    lines = [
        f"# Measured on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by grsgd {__version__}, {launch.library()}:",
        f"#   {command}",
        f"# {plural(ranks, 'rank')} on {places(measured.hosts)}.",
        f"# latency: half a round trip of 8 bytes {between}; bandwidth: {LARGE_BYTES // 2**20} MiB one way,",
        "# or both ways at once within a host.",
        "# Pairs were measured one at a time. The medians of all pairs also stand for pairs that were not measured.",
        f"bandwidth = {quoted(as_rate(bandwidth))}",
        f"latency = {quoted(as_duration(latency))}",
        *([] if measured.queue_bytes is None else [f"queue_bytes = {measured.queue_bytes}"]),
        *([] if measured.processor is None else [f"eager_bytes = {measured.processor.eager_bytes}"]),
        "",
        *([f"# {CROWDED}"] if measured.crowded else []),
        "[compute]  # of a training step, gradient and update, on all ranks at once",
        f"median = {compute.median!r}  # s",
        f"sigma = {compute.sigma!r}  # standard deviation of the time's logarithm",
        *after_wait_lines(compute),
        *work_lines(measured.work, config),
        f"what = {quoted(compute.what)}",
    ]
    factors = {rank: median / compute.median for rank, median in enumerate(medians)}
    slowdown = ", ".join(f"{rank} = {factor:.3g}" for rank, factor in factors.items() if differs(factor, 1.0))
    if slowdown:
        lines.append(f"slowdown = {{ {slowdown} }}  # times of single ranks, in units of the median")
    lines += processor_section(measured)
    links, ports = [], slow_ports(measured.pairs, bandwidth)
    for pair in measured.pairs:
        entry = []
        if differs(pair.bandwidth, min(bandwidth, *(ports.get(rank, bandwidth) for rank in pair.ranks))):
            entry.append(f"bandwidth = {quoted(as_rate(pair.bandwidth))}")
            for rank in pair.ranks:
                ports[rank] = max(pair.bandwidth, ports.get(rank, bandwidth))
        if differs(pair.latency, latency):
            entry.append(f"latency = {quoted(as_duration(pair.latency))}")
        if entry:
            source, dest = pair.ranks
            links += ["[[link]]", f"from = {source}", f"to = {dest}", "both_ways = true", *entry, ""]
    if links:
        lines += ["", f"# Pairs that deviate from the medians by more than {MIN_DEVIATION:.0%}.", *links]
    ports = {rank: fastest for rank, fastest in sorted(ports.items()) if fastest != bandwidth}
    if ports:
        lines += ["", "# A link is at most as fast as the ports of its two ranks."]
    for rank, fastest in ports.items():
        lines += ["[[port]]", f"rank = {rank}", f"bandwidth = {quoted(as_rate(fastest))}", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def typical(times: list[StepTimes]) -> dict[str, float]:
    """Return the median over the ranks of each of the `StepTimes` that every rank has measured. The keys are the names
    of fields of `ComputeSpec`."""
    columns = zip(StepTimes._fields, zip(*times, strict=True), strict=True)
    return {name: float(f"{statistics.median(of_ranks):.4g}") for name, of_ranks in columns if None not in of_ranks}


def after_wait_lines(compute: ComputeSpec) -> list[str]:
    if compute.after_wait is None:
        return []
    return [
        f"after_wait = {compute.after_wait!r}  # s, of a step after {as_duration(AFTER_WAIT_SECONDS)} of waiting",
        f"after_wait_sigma = {compute.after_wait_sigma!r}",
    ]


def work_lines(work: float | None, config: Config) -> list[str]:
    if work is None:
        return []
    return [f"work = {work:.4g}  # s, in addition, of a step of {config.algorithm.name}, messages excluded"]


def slow_ports(pairs: list[Pair], bandwidth: float) -> dict[int, float]:
    """Return, for each rank that is slow in all of its measured pairs, the bandwidth of the rank's port in bytes/s.

    Ranks with only one measured pair are left out. If a rank is slow in all its pairs, the cause is the rank's port,
    and not the route to one other rank.
    """
    of_rank = {}
    for pair in pairs:
        for rank in pair.ranks:
            of_rank.setdefault(rank, []).append(pair.bandwidth)
    return {
        rank: max(found)
        for rank, found in of_rank.items()
        if len(found) > 1 and max(found) < bandwidth and differs(max(found), bandwidth)
    }


def processor_section(measured: Calibration) -> list[str]:
    """Return the lines of the network file's section ``[processor]``; no lines if the processor time of messages was
    not measured."""
    times = measured.processor
    if times is None:
        return []
    explained = {
        "send": "for a message, at its sender",
        "receive": "for a message, at its receiver",
        "send_byte": "for each byte, at its sender",
        "receive_byte": "for each byte, at its receiver, which adds the message to a sum",
        "polling": "fraction by which computing takes longer while a schedule waits in the background",
        "reaction": "until a computing rank notices a message; the mean",
        "wake": "until a rank that has waited for long notices a message",
    }
    lines = ["", "[processor]  # processor time of messages while a rank computes; with the quartiles"]
    for name, what in explained.items():
        spread = getattr(times, name)
        median, low, high = (f"{value:.3g}" if name == "polling" else as_duration(value) for value in spread)
        lines.append(f"{name} = {median if name == 'polling' else quoted(median)}  # {what}: {low} to {high}")
    if times.progress_mode == "thread":
        lines.append("thread = true  # a thread looks for messages; the rank itself looks only while it waits")
    if times.spin != ProcessorSpec().spin:
        lines.append(f"spin = {quoted(as_duration(times.spin))}  # waiting ranks with less than a core sleep sooner,")
        lines.append(f"full_sleep = {quoted(as_duration(times.full_sleep))}  # and sleep longer")
    if times.period:
        lines.append(f"share = {times.share:.4g}  # fraction of a core that a quota allows,")
        lines.append(f"period = {quoted(as_duration(times.period))}  # over periods of this length")
        for name, what in OF_QUOTA.items():
            median, low, high = map(as_duration, getattr(times, name))
            lines.append(f"{name} = {quoted(median)}  # of the quota, at a waiting rank, {what}: {low} to {high}")
    return [*lines, f"what = {quoted(f'comm.progress_mode = {times.progress_mode}')}"]


def differs(value: float, median: float) -> bool:
    """Return whether ``value`` deviates from ``median`` by more than the fraction `MIN_DEVIATION` of ``median``."""
    return abs(value - median) > MIN_DEVIATION * median


def quoted(text: str) -> str:
    """Return ``text`` as a TOML string with its quotation marks."""
    return json.dumps(text, ensure_ascii=False)


def plural(number: int, what: str) -> str:
    """Return ``number`` and the noun ``what`` as text, for example "2 ranks". Unless ``number`` is 1, the noun gets a
    plural s."""
    return f"{number} {what}" + ("s" if number != 1 else "")


def places(hosts: Iterable[str]) -> str:
    """Return a text that lists the hosts, each with its number of ranks, for example "node1 (4), node2 (4)". The phrase
    names at most the first four hosts."""
    hosts = list(hosts)
    counts = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    names = [host if count == 1 else f"{host} ({count})" for host, count in list(counts.items())[:4]]
    more = len(counts) - len(names)
    return ", ".join(names) + (f" and {more} more hosts" if more else "")


def table(measured: Calibration) -> str:
    """Return a table as text, with the median, least and greatest measured value of latency, bandwidth and seconds of a
    step."""
    from tabulate import tabulate

    rows = []
    for name, values, form in (
        ("latency", [pair.latency for pair in measured.pairs], as_duration),
        ("bandwidth", [pair.bandwidth for pair in measured.pairs], as_rate),
        ("compute a step", [times.median for times in measured.compute], as_duration),
    ):
        of = "pair" if name != "compute a step" else "rank"
        row = (name, *(form(function(values)) for function in (statistics.median, min, max)))
        rows.append((*row, plural(len(values), of)))
    text = tabulate(rows, headers=("", "median", "least", "most", "of"), tablefmt="pipe", disable_numparse=True)
    return f"{text}\n{CROWDED}" if measured.crowded else text


def write(path: Path, text: str):
    """Replace the content of the file ``path`` by ``text``. If writing fails, the file keeps its old content."""
    with atomic_write(path) as temporary:
        temporary.write_text(text)
