"""Timelines of every rank's activities, written in Chrome's trace-event format for ui.perfetto.dev or chrome://tracing.

In a timeline file each rank is a process, with the tracks in `TRACKS`. A span is an activity from its beginning to its
end. Overlapping spans of a track, such as messages to several ranks, are drawn on several lanes. An arrow leads from
the sending of a message to its receipt.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from grsgd.files import atomic_write
from grsgd.runs.targets import naming, target_of

COMPUTE, MERGE, WAIT, SEND, RECEIVE = TRACKS = ("compute", "merge", "wait", "send", "receive")
MAX_SPANS = 100_000
"""Largest number of spans (activities) that are stored per rank; later spans are left out. `MAX_SPANS` spans take about
40 MB of memory."""
MAX_SPANS_TOGETHER = 1_000_000
"""Largest number of spans (activities) of all ranks of a run together that are stored."""
SHORTEST_MESSAGE = 2e-9
"""Shortest duration in seconds with which a message is drawn, because an arrow must begin and end within a span."""
ARROW_INSET = 1e-9
"""Seconds between the edge of a span and the end of an arrow inside the span."""


class Span(NamedTuple):
    """Activity of a rank, such as computing or a message, from ``begin`` to ``end``, in seconds since training began.

    For a message, ``peer`` is the other rank (None if it is unknown or if there are several). ``nbytes`` is the
    message's size in bytes, and ``tag`` is its MPI tag. ``message`` identifies the message, and has the same value at
    sender and receiver.
    """

    track: str
    name: str
    begin: float
    end: float
    peer: int | None = None
    nbytes: int | None = None
    tag: int | None = None
    message: Hashable = None


class Timeline:
    """Recorder of the spans (activities) of one rank.

    Parameters
    ----------
    clock
        Function that returns seconds.
    limit
        Largest number of spans that are stored. Later spans are only counted.
    shortest
        Duration in seconds up to which spans are left out as negligible, unless they are messages.
    """

    def __init__(self, rank: int, clock: Callable[[], float], limit: int = MAX_SPANS, shortest: float = 0.0):
        self.rank, self.clock, self.limit, self.shortest = rank, clock, limit, shortest
        self.spans: list[Span] = []
        self.left_out = 0
        """Number of spans that were left out because ``limit`` was reached."""
        self._zero: float | None = None

    def begin(self, zero: float):
        """Begin to record spans. ``zero`` is the time, in seconds of ``clock``, at which training begins. Spans
        (activities) that begin before ``zero`` are left out."""
        self._zero = zero

    def add(self, track: str, name: str, begin: float, end: float, *message):
        """Record a span from ``begin`` to ``end``, in seconds of ``clock``. ``message`` has the values of the fields
        peer, nbytes, tag and message of `Span`."""
        if self._zero is None or begin < self._zero:
            return
        if end - begin <= self.shortest and track not in (SEND, RECEIVE):
            return
        if len(self.spans) >= self.limit:
            self.left_out += 1
        else:
            self.spans.append(Span(track, sys.intern(name), begin - self._zero, end - self._zero, *message))

    def kept(self) -> FinishedTimeline:
        """Return the recorded spans as a `FinishedTimeline`, which the function `write` takes."""
        return FinishedTimeline(self.rank, list(self.spans), self.left_out)


class FinishedTimeline(NamedTuple):
    """Recorded spans (activities) of a rank, and the number of spans that were left out because of the limit."""

    rank: int
    spans: list[Span]
    left_out: int


def limit_of(ranks: int) -> int:
    """Return the largest number of spans that each rank stores in a run of ``ranks`` ranks."""
    return max(1, min(MAX_SPANS, MAX_SPANS_TOGETHER // ranks))


def write(path: str | os.PathLike, timelines: Iterable[FinishedTimeline], clock: str) -> list[str]:
    """Write the timelines of all ranks to the file ``path``. If writing fails, no incomplete file is left. ``clock`` is
    a text for readers of the file that says from which clock the times come.

    Return a list with one message if spans are missing, else an empty list. Raises RunFileError if the file cannot be
    written.
    """
    timelines = list(timelines)
    missing = [cut_off(path, timelines)] if any(kept.left_out for kept in timelines) else []
    with naming(path), atomic_write(target_of(path)) as temporary, open(temporary, "w", encoding="utf-8") as file:
        other = json.dumps({"clock": clock} | ({"missing": missing} if missing else {}))
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {other}, "traceEvents": [\n')
        for number, event in enumerate(events(timelines)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")
    return missing


def cut_off(path, timelines: list[FinishedTimeline]) -> str:
    """Return a message that says from which time on spans of ``timelines`` are missing."""
    cut = [kept for kept in timelines if kept.left_out]
    first = min(cut, key=lambda kept: kept.spans[-1].begin)
    return (
        f"{os.fspath(path)}: has only the first {len(first.spans):,} spans of a rank: of rank {first.rank} up to "
        f"{first.spans[-1].begin:.6g} s; {sum(kept.left_out for kept in cut):,} later spans are missing, of "
        f"{len(cut)} rank{'s' * (len(cut) > 1)}"
    )


def events(timelines: list[FinishedTimeline]) -> Iterator[dict]:
    """Yield the events of the timeline file: names of tracks, spans and arrows. Times are in microseconds."""
    sent = {span.message: span.begin for kept in timelines for span in kept.spans if is_end(span, SEND)}
    ends: dict[Hashable, dict[str, tuple[int, int, float]]] = {}
    # the numbers of threads are above all ranks, because a thread with its process's number is drawn first
    tid = 1 + max((kept.rank for kept in timelines), default=0)
    for rank, spans, _ in timelines:
        yield named("process_name", rank, tid, f"rank {rank}")
        yield named("process_sort_index", rank, tid, rank)
        for track in TRACKS:
            drawn = sorted((as_drawn(span, sent) for span in spans if span.track == track), key=lambda s: s.begin)
            lanes = lanes_of(drawn)
            for number in range(max(lanes, default=0) + 1):
                yield named("thread_name", rank, tid + number, track if not number else f"{track} {number + 1}")
                yield named("thread_sort_index", rank, tid + number, tid + number)
            for span, lane in zip(drawn, lanes, strict=True):
                yield event_of(span, rank, tid + lane)
                if span.message is not None:
                    inset = span.begin + ARROW_INSET if track == SEND else span.end - ARROW_INSET
                    ends.setdefault(span.message, {})[track] = rank, tid + lane, inset
            tid += max(lanes, default=0) + 1
    number = 0
    for places in ends.values():
        if len(places) == 2:
            number += 1
            for phase, track in (("s", SEND), ("f", RECEIVE)):
                rank, tid, at = places[track]
                event = {"ph": phase, "id": number, "cat": "message", "name": "message", "pid": rank, "tid": tid}
                yield event | {"ts": microseconds(at)} | ({"bp": "e"} if phase == "f" else {})


def is_end(span: Span, track: str) -> bool:
    return span.track == track and span.message is not None


def as_drawn(span: Span, sent: dict[Hashable, float]) -> Span:
    """Return ``span`` with the begin and the end with which it is drawn. The span of a received message begins when the
    message is sent, not when the receiver begins to wait. ``sent`` is a dictionary from each message to the time at
    which the message was sent."""
    if span.track not in (SEND, RECEIVE):
        return span
    begin = span.begin
    if span.track == RECEIVE:
        begin = min(max(begin, sent.get(span.message, begin)), span.end)
    return span._replace(begin=begin, end=max(span.end, begin + SHORTEST_MESSAGE))


def lanes_of(spans: list[Span]) -> list[int]:
    """Return the number of a lane (line of the drawing) for each of ``spans``, which are in the order of their
    beginnings. Each span gets the lowest lane in which it overlaps no other span."""
    lanes, free = [], []
    for span in spans:
        lane = next((number for number, end in enumerate(free) if end <= span.begin), len(free))
        free[lane : lane + 1] = [span.end]
        lanes.append(lane)
    return lanes


def named(what: str, rank: int, tid: int, value) -> dict:
    key = "sort_index" if what.endswith("sort_index") else "name"
    return {"ph": "M", "name": what, "pid": rank, "tid": tid, "args": {key: value}}


def event_of(span: Span, rank: int, tid: int) -> dict:
    begin = microseconds(span.begin)
    event = {"ph": "X", "name": span.name, "cat": span.track, "pid": rank, "tid": tid, "ts": begin}
    event["dur"] = round(microseconds(span.end) - begin, 3)
    args = {"peer": span.peer, "bytes": span.nbytes, "tag": span.tag}
    args = {key: value for key, value in args.items() if value is not None}
    return event | ({"args": args} if args else {})


def microseconds(seconds: float) -> float:
    """Return ``seconds`` in microseconds, rounded to the nanosecond."""
    return round(1e6 * seconds, 3)
