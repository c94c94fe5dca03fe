"""All-reduces whose times are calculated, against the same ones message after message."""

import pytest

from grsgd.comm import allreduce
from grsgd.comm.pollables import Delay
from grsgd.config import parse
from grsgd.runs.run_file import load_run
from grsgd.simulator import simulation as simulations
from grsgd.simulator.fast_ring.allreduces import AllreduceTimes
from grsgd.simulator.fast_ring.program import record
from grsgd.simulator.network import NetworkSpec, network
from grsgd.simulator.run import simulate

SAME = {"local_sgd": {"H": 2}, "ring_allreduce": {}}


def times(tmp_path, monkeypatch, config, ranks, spec, calculates):
    """Return the run, and how many parts of all-reduces were calculated."""
    calculated = []

    class Times(AllreduceTimes):
        def begin(self, *arguments):
            calculated.append(super().begin(*arguments))
            return calculated[-1]

    monkeypatch.setattr(simulations, "AllreduceTimes", Times if calculates else lambda fabric: None)
    simulate(config, ranks, network(spec), tmp_path / "run.h5", "lognormal:0.001,0.7", timing_only=True)
    return load_run(tmp_path / "run.h5"), len([part for part in calculated if part is not None])


def bytes_of_cables(run) -> dict:
    cables = run.extra.get("traffic", {}).get("cables", {"from": [], "to": [], "bytes": []})
    rows = zip(*(cables[name] for name in ("from", "to", "bytes")), strict=True)
    return {(source, dest): nbytes for source, dest, nbytes in rows}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("hidden", [[16], [1400, 700]], ids=["short", "long"])
@pytest.mark.parametrize(
    ("ranks", "spec"),
    [(2, "1gbit,50us"), (3, "0.1gbit,3ms"), (5, "10gbit,0s"), (8, "1gbit,50us"), (8, "torus:4x2,1gbit,50us")],
)
def test_they_are_those_of_the_messages(name, hidden, ranks, spec, tmp_path, monkeypatch):
    """On a ring to the last bit; with pieces, eager and long messages, ranks of unequal speed and unequal chunks."""
    config = parse(
        {
            "algorithm": {"name": name} | SAME[name],
            "model": {"name": "mlp", "hidden": hidden},
            "data": {"name": "synthetic", "samples": 512, "batch_size": 8},
            "train": {"steps": 6},
            "stragglers": {"slowdown": {0: 2.0}},
        }
    )
    (run, none), (calculated, some) = (
        times(tmp_path, monkeypatch, config, ranks, spec, calculates) for calculates in (False, True)
    )
    assert none == 0 and some == ranks * (6 if name == "ring_allreduce" else 3)
    assert (run.curve["time"] == calculated.curve["time"]).all()
    for column in ("wait_seconds", "compute_seconds"):
        assert (calculated.ranks[column] == run.ranks[column]).all(), column
    for table in ("sent", "messages", "headers", "sent_once"):
        assert (run.traffic[table] == calculated.traffic[table]).all(), table
    assert bytes_of_cables(run) == bytes_of_cables(calculated)
    assert bool(bytes_of_cables(run)) == spec.startswith("torus")


UNEVEN = {
    "a slow port": ("ring_allreduce", 4, {"port": [{"rank": 2, "bandwidth": "20mbit"}]}, "constant:0.00001"),
    "a slow link": (
        *("ring_allreduce", 2),
        {"link": [{"from": 0, "to": 1, "bandwidth": "50mbit"}], "eager_bytes": 10**8},
        "constant:0.00001",
    ),
    "in between": ("local_sgd", 4, {"port": [{"rank": 2, "bandwidth": "20mbit"}]}, "lognormal:0.0001,2"),
    "short steps": ("ring_allreduce", 3, {"bandwidth": "10mbit", "latency": "1us"}, "constant:0.000001"),
}


@pytest.mark.parametrize("case", UNEVEN)
def test_a_rank_may_begin_the_next_one_while_its_messages_leave(case, tmp_path, monkeypatch):
    """Short ones, which are stored: they have left when their connection is free again."""
    name, ranks, network_options, compute = UNEVEN[case]
    spec = NetworkSpec(**{"bandwidth": "1gbit", "latency": "50us"} | network_options)
    config = parse(
        {"algorithm": {"name": name} | SAME[name], "data": {"name": "synthetic", "samples": 512, "batch_size": 8}}
        | {"model": {"name": "mlp", "hidden": [40]}, "train": {"steps": 8}}
    )
    ends = []
    for calculates in (False, True):
        if not calculates:
            monkeypatch.setattr(simulations, "AllreduceTimes", lambda fabric: None)
        else:
            monkeypatch.undo()
        simulate(config, ranks, spec, tmp_path / "run.h5", compute, timing_only=True)
        run = load_run(tmp_path / "run.h5")
        ends.append((run.attributes["virtual_seconds"], run.curve["time"].tolist()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"variant": "tree"}, "1gbit,50us"),
        ({}, "shared,1gbit,50us"),
        ({}, "hosts:1x4,1gbit,50us"),
        ({"compression": "int8"}, "1gbit,50us"),
    ],
)
def test_messages_that_share_a_port_are_simulated(options, spec, tmp_path, monkeypatch):
    config = parse(
        {"algorithm": {"name": "ring_allreduce"} | options, "data": {"name": "synthetic"}, "train": {"steps": 2}}
        | {"model": {"name": "mlp", "hidden": [16]}}
    )
    run, calculated = times(tmp_path, monkeypatch, config, 4, spec, True)
    assert calculated == 0 and run.traffic["sent"].sum() > 0


def test_chunks_of_a_few_bytes(tmp_path, monkeypatch):
    """The beginning of an array without content has some, for headers; a chunk may lie in it or not."""
    config = parse(
        {"algorithm": {"name": "ring_allreduce"}, "data": {"name": "synthetic", "shape": [1, 2, 2], "classes": 2}}
        | {"model": {"name": "mlp", "hidden": [4]}, "train": {"steps": 2}}
    )
    ends = [
        times(tmp_path, monkeypatch, config, 20, "1gbit,50us", calculates)[0].curve["time"]
        for calculates in (False, True)
    ]
    assert (ends[0] == ends[1]).all()


def test_a_program_has_every_message_twice():
    program = record(allreduce.ring_allreduce, 4, 1000, "float32", {})
    assert len(program.nbytes) == 4 * 6 and program.nbytes.sum() == 2 * 3 * 4000
    sends = program.messages[program.kinds == 0]
    assert sorted(sends) == sorted(program.messages[program.kinds == 1]) == list(range(24))
    assert [sum(nbytes for _, nbytes in sent.values()) for sent in program.sent] == [6000] * 4


def test_what_is_no_message_cannot_be_recorded():
    def schedule(comm, x):
        yield Delay(1.0)

    with pytest.raises(TypeError, match="a delay of 1 s, which is not a message"):
        record(schedule, 2, 10, "float32", {})


def test_what_is_not_received_cannot_be_recorded():
    def schedule(comm, x):
        yield comm.Isend(x, 1 - comm.rank)

    with pytest.raises(ValueError, match="rank 0 sends messages with tag 0 that rank 1 does not receive"):
        record(schedule, 2, 10, "float32", {})
