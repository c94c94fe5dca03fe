"""Timelines of simulated runs: what is recorded, and what is refused."""

import json
from collections import defaultdict

import pytest

from grsgd import load_run
from grsgd.cli import main
from grsgd.errors import ConfigError, RunFileError
from grsgd.runs.ending import INTERRUPTED
from grsgd.simulator.run import simulate
from grsgd.simulator.tracing import goal
from grsgd.simulator.tracing.instrumentation import Instrumentation
from grsgd.simulator.tracing.replay import replay
from grsgd.testing.simulated import network_of
from grsgd.training.trainer import Trainer
from tests.support.training import CONSTANT, SLOW, config

ALGORITHMS = ("ring_allreduce", "dpsgd", "grsgd", "gossip", "parameter_server", "ssgd", "easgd")


def run_of(name, folder, ranks=4, network=None, compute="lognormal:0.01,0.5", **sections):
    """The events of a simulated run, and its run file."""
    recording = Instrumentation(folder / "run.json")
    arguments = config(name, **sections), ranks, network or network_of(**SLOW), folder / "run.h5", compute
    simulate(*arguments, recording=recording)
    return events_of(folder / "run.json"), load_run(folder / "run.h5")


def events_of(path) -> list[dict]:
    content = json.loads(path.read_text())
    assert content["displayTimeUnit"] == "ms"
    return content["traceEvents"]


def spans(events, category=None):
    return [e for e in events if e["ph"] == "X" and category in (None, e["cat"])]


def seconds_by_rank(events, category) -> dict[int, float]:
    sums = defaultdict(float)
    for event in spans(events, category):
        sums[event["pid"]] += 1e-6 * event["dur"]
    return dict(sums)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_spans_of_a_track_do_not_overlap(name, tmp_path):
    events, _ = run_of(name, tmp_path)
    tracks = defaultdict(list)
    for event in spans(events):
        assert event["ts"] >= 0 and event["dur"] > 0
        tracks[event["pid"], event["tid"]].append((event["ts"], round(event["ts"] + event["dur"], 3)))
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(tracks) <= set(names)
    for place, intervals in tracks.items():
        for (_, end), (begin, _) in zip(sorted(intervals), sorted(intervals)[1:], strict=False):
            assert end <= begin, names[place]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_times_are_those_of_the_run_file(name, tmp_path):
    stragglers = {"slowdown": {1: 1.5}, "pause": {2: {"every": 3, "seconds": 0.02}}}
    events, run = run_of(name, tmp_path, stragglers=stragglers)
    computed, last = seconds_by_rank(events, "compute"), max(e["ts"] + e["dur"] for e in spans(events))
    for rank, seconds in enumerate(run.ranks["compute_seconds"]):
        assert computed.get(rank, 0.0) == pytest.approx(seconds, abs=1e-9 * len(events))
    assert last == pytest.approx(1e6 * run.attributes["virtual_seconds"], abs=0.01)
    assert spans(events, "merge") == []  # takes no simulated time
    waited = seconds_by_rank(events, "wait")
    for rank, seconds in enumerate(run.ranks["wait_seconds"]):
        assert waited.get(rank, 0.0) >= seconds - 1e-9 * len(events)  # and after the last step


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_message_has_its_arrow(name, tmp_path):
    events, run = run_of(name, tmp_path)
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    sent, received = spans(events, "send"), spans(events, "receive")
    assert heads.keys() == tails.keys() and len(heads) == len(sent) == len(received)
    assert sum(e["args"]["bytes"] for e in sent) == run.traffic["sent"].sum() + run.traffic["headers"].sum()
    for way, arrows, messages in ((1, tails, sent), (-1, heads, received)):
        inside = {(e["pid"], e["tid"], e["ts"] if way > 0 else round(e["ts"] + e["dur"], 3)): e for e in messages}
        for number, arrow in arrows.items():
            message = inside[arrow["pid"], arrow["tid"], round(arrow["ts"] - way * 1e-3, 3)]
            other = (heads if way > 0 else tails)[number]
            assert message["args"]["peer"] == other["pid"]
    assert all(heads[number]["ts"] >= tail["ts"] for number, tail in tails.items())


def test_a_message_alone_takes_what_the_network_says(tmp_path):
    """Two ranks exchange all of a model: 136 bytes, 8 us a byte, and 1 ms to the other."""
    events, _ = run_of("ring_allreduce", tmp_path, ranks=2, compute=CONSTANT)
    assert {round(e["dur"], 3) for e in spans(events, "send")} == {136 * 8.0}
    assert {round(e["dur"], 3) for e in spans(events, "receive")} == {136 * 8.0 + 1000}
    assert {e["dur"] for e in spans(events, "compute")} == {10_000.0}


def test_nothing_changes_by_being_recorded(tmp_path):
    for number, recording in enumerate((Instrumentation(), Instrumentation(tmp_path / "a.json", tmp_path / "a.goal"))):
        chosen = config("gossip", steps=20)
        simulate(chosen, 5, network_of(**SLOW), tmp_path / f"{number}.h5", "lognormal:0.01,1", recording=recording)
    plain, recorded = (load_run(tmp_path / f"{number}.h5") for number in range(2))
    assert (plain.curve["time"] == recorded.curve["time"]).all()
    assert (plain.curve["test_accuracy"] == recorded.curve["test_accuracy"]).all()
    assert plain.attributes["virtual_seconds"] == recorded.attributes["virtual_seconds"]
    assert (plain.ranks["wait_seconds"] == recorded.ranks["wait_seconds"]).all()


def test_deaths_leave_a_timeline(tmp_path):
    recording = Instrumentation(tmp_path / "run.json")
    chosen = config("grsgd", steps=20, faults={"die": {1: 0.05}})
    simulate(chosen, 4, network_of(**SLOW), tmp_path / "run.h5", CONSTANT, spares=1, recording=recording)
    computed = seconds_by_rank(events_of(tmp_path / "run.json"), "compute")
    assert computed[1] <= 0.06 and set(computed) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--timeline", "missing/run.json"], "missing/run.json: there is no directory"),
        (["--timeline", "."], "is a directory"),
        (["--timeline", "run.h5"], "is the file of --out, too"),
        (["--trace", "missing/run.goal"], "missing/run.goal: there is no directory"),
        (["--trace", "both", "--timeline", "both"], "--trace both: is the file of --timeline, too"),
        (["--trace", "run.goal", "--spares", "1", "--set", "algorithm.name=grsgd"], "--trace: not with"),
        (["--trace", "run.goal", "--network", "shared", "--set", "algorithm.name=ssgd"], "GOAL cannot express"),
    ],
)
def test_refused_before_training(options, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        '[algorithm]\nname = "dpsgd"\n[model]\nname = "mlp"\n[data]\nname = "synthetic"\n[train]\nsteps = 3\n'
    )
    assert main(["simulate", "run.toml", "--timing-only", "--out", "run.h5", *options]) == 2
    *_, line = capsys.readouterr().err.splitlines()  # on a slow machine after one that says what is done
    assert line.startswith("grsgd: error: ") and named in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"]


def test_what_cannot_be_written_in_the_end_costs_no_run_file(tmp_path):
    class Full(Instrumentation):
        def write(self, comments):
            raise RunFileError("run.json: No space left on device")

    with pytest.raises(RunFileError, match="No space left"):
        simulate(config("dpsgd"), 3, network_of(**SLOW), tmp_path / "run.h5", CONSTANT, recording=Full())
    assert load_run(tmp_path / "run.h5").attributes["ended"] == "completed"


def test_recording_checks_before_anything(tmp_path):
    recording = Instrumentation(tmp_path / "run.h5")
    with pytest.raises(ConfigError, match="--timeline"):
        recording.check(tmp_path / "run.h5", False, network_of(**SLOW))


def test_a_simulation_that_is_broken_off_leaves_what_it_has(tmp_path, monkeypatch):
    step = Trainer.step

    def interrupted(self, number):
        if (self.comm.rank, number) == (2, 5):
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(Trainer, "step", interrupted)
    recording = Instrumentation(tmp_path / "run.json", tmp_path / "run.goal")
    chosen = config("dpsgd", steps=1000)
    assert simulate(chosen, 4, network_of(**SLOW), tmp_path / "run.h5", CONSTANT, recording=recording) == INTERRUPTED
    computed = [event["pid"] for event in spans(events_of(tmp_path / "run.json"), "compute")]
    assert computed.count(2) == 5 and all(4 <= computed.count(rank) <= 6 for rank in range(4))
    operations = goal.read(tmp_path / "run.goal")
    assert max(replay(operations, network_of(**SLOW)).ends) == pytest.approx(0.05, rel=0.3)
