"""The file of a timeline, and how many spans it may have."""

import json

from grsgd.runs.timeline import FinishedTimeline, Span, Timeline, limit_of, write


def events_of(path) -> list[dict]:
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] == "ms"
    return content["traceEvents"]


def spans(events, category=None):
    return [e for e in events if e["ph"] == "X" and category in (None, e["cat"])]


def test_the_first_spans_are_kept_and_the_rest_is_told(tmp_path):
    timeline = Timeline(3, lambda: 0.0, limit=2)
    timeline.add("compute", "before", -1.0, 0.5)
    timeline.begin(0.0)
    for number in range(5):
        timeline.add("compute", "gradient", number, number + 0.5)
    (line,) = write(tmp_path / "cut.json", [timeline.kept()], "simulated")
    missing = "has only the first 2 spans of a rank: of rank 3 up to 1 s; 3 later spans are missing, of 1 rank"
    assert line == f"{tmp_path}/cut.json: {missing}"
    assert [e["ts"] for e in spans(events_of(tmp_path / "cut.json"))] == [0.0, 1e6]
    assert json.loads((tmp_path / "cut.json").read_text())["otherData"] == {"clock": "simulated", "missing": [line]}


def test_the_bound():
    assert limit_of(1) == limit_of(10) == 100_000
    assert limit_of(1000) == 1000


def test_what_overlaps_gets_lanes(tmp_path):
    sends = [Span("send", "send", begin, begin + 2.0, 1, 8, 0, begin) for begin in (0.0, 1.0, 2.0)]
    write(tmp_path / "run.json", [FinishedTimeline(0, sends, 0)], "wall")
    events = events_of(tmp_path / "run.json")
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [names[e["tid"]] for e in spans(events)] == ["send", "send 2", "send"]
    assert not [e for e in events if e["ph"] in "sf"]  # nobody has received them
