"""Replays of traces: on the network of the run they take what the run took; of a synchronous run, on another network
what a run there takes."""

import pytest

from grsgd import load_run
from grsgd.algorithms import ALGORITHMS
from grsgd.cli import main
from grsgd.simulator.driver import Deadlock
from grsgd.simulator.run import simulate
from grsgd.simulator.simulation import Simulation
from grsgd.simulator.tracing import goal
from grsgd.simulator.tracing.goal import CALC, RECV, SEND, Operation
from grsgd.simulator.tracing.instrumentation import Instrumentation
from grsgd.simulator.tracing.replay import replay
from grsgd.simulator.tracing.trace import Trace
from grsgd.testing.simulated import network_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import CONSTANT, SLOW, config

NETWORKS = {
    "slow": network_of(**SLOW),
    "fast": network_of(bandwidth="1 gbit", latency="50 us"),
    "uneven": network_of(
        bandwidth="1 mbit",
        latency="1 ms",
        eager_bytes=64,
        queue_bytes=200,
        link=[{"from": 0, "to": 1, "bandwidth": "0.3 mbit", "latency": "7 ms"}],
        port=[{"rank": 2, "bandwidth": "0.5 mbit"}],
    ),
}
PUSH = {"name": "gossip", "mode": "push"}
ASKED_FOR = ["ring_allreduce", "dpsgd", "grsgd", PUSH, "parameter_server"]
SYNCHRONOUS = [name for name, algorithm in sorted(ALGORITHMS.items()) if algorithm.traits.synchronous]
STRAGGLERS = {"slowdown": {1: 1.5}, "pause": {2: {"every": 3, "seconds": 0.02}}}


class Traced:
    """A simulated run and its trace: the operations in GOAL, when each rank's training ended, and the run file."""

    def __init__(self, folder, algorithm, ranks, network, compute, **sections):
        recording = Instrumentation(None, folder / "run.goal")
        arguments = config(algorithm, **sections), ranks, NETWORKS[network], folder / "run.h5", compute
        simulate(*arguments, timing_only=True, recording=recording)
        self.operations, self.run = goal.read(folder / "run.goal"), load_run(folder / "run.h5")
        self.ends = [ends_of(recording.traced, rank) for rank in range(ranks)]

    @property
    def calcs(self) -> int:
        """Of all ranks: each is rounded to a nanosecond."""
        return sum(operation.kind == CALC for rank in self.operations for operation in rank)


def ends_of(trace: Trace, rank: int) -> float:
    (end,) = (event.begin for event in trace.events[rank] if event.tag == "end")
    return end - trace.began


@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("algorithm", ASKED_FOR, ids=str)
def test_the_same_network_gives_the_same_ends(algorithm, network, ranks, tmp_path):
    """Computations of whole nanoseconds: nothing is rounded."""
    traced = Traced(tmp_path, algorithm, ranks, network, CONSTANT, steps=20)
    replayed = replay(traced.operations, NETWORKS[network])
    tolerance = {"rel": 1e-9} if network != "uneven" else {"rel": 1e-9, "abs": 1e-9 * traced.calcs}
    assert replayed.ends == pytest.approx(traced.ends, **tolerance)
    assert max(replayed.ends) == pytest.approx(traced.run.attributes["virtual_seconds"], **tolerance)
    traffic = traced.run.traffic
    assert replayed.sent == traffic["sent"].sum() + traffic["headers"].sum()


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in SYNCHRONOUS[::4], sorted(ALGORITHMS)))
def test_rounding_costs_nanoseconds(name, tmp_path):
    traced = Traced(tmp_path, name, 4, "slow", "lognormal:0.01,0.5", steps=20, stragglers=STRAGGLERS)
    replayed = replay(traced.operations, NETWORKS["slow"])
    assert replayed.ends == pytest.approx(traced.ends, rel=0, abs=1e-9 * traced.calcs)


@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in ASKED_FOR, SYNCHRONOUS))
@pytest.mark.parametrize("here", ["slow", "fast"])
def test_a_synchronous_run_is_foretold_for_another_network(name, here, tmp_path):
    there = {"slow": "fast", "fast": "slow"}[here]
    traced, there_run = (Traced(tmp_path, name, 4, where, "lognormal:0.01,0.5") for where in (here, there))
    replayed = replay(traced.operations, NETWORKS[there])
    assert replayed.ends == pytest.approx(there_run.ends, rel=0, abs=1e-9 * traced.calcs)
    assert replayed.ends != pytest.approx(traced.ends, rel=1e-3)


def test_broadcasts_are_messages_to_each(tmp_path):
    """With the same computing everywhere, all are ready for a broadcast at the same moment, as it is simulated."""
    traced = Traced(tmp_path, "ssgd", 4, "slow", CONSTANT)
    replayed = replay(traced.operations, NETWORKS["slow"])
    assert replayed.ends == pytest.approx(traced.ends, rel=1e-9)
    assert replayed.sent == traced.run.traffic["sent"].sum() + traced.run.traffic["headers"].sum()


def test_a_message_that_nobody_received_is_written_with_a_receive(tmp_path):
    """Half of a run: the ranks stop where they are."""
    recording = Instrumentation(None, tmp_path / "run.goal")
    chosen = config("grsgd", steps=1000)
    job = Simulation(chosen, 4, NETWORKS["slow"], CONSTANT, True, recording=recording)
    steps = iter(range(10))
    job.trainers[1].on_step = lambda *_: None if next(steps, None) is not None else job.signals[1].stop("enough")
    job.train()
    recording.write(list)
    operations = goal.read(tmp_path / "run.goal")
    kinds = [[op.kind for op in rank].count(kind) for kind in (SEND, RECV) for rank in operations]
    assert sum(kinds[:4]) == sum(kinds[4:]) > 0
    ends = replay(operations, NETWORKS["slow"]).ends
    assert ends == pytest.approx([ends_of(recording.traced, rank) for rank in range(4)], rel=1e-9)


# ---- schedules written by hand, with times from a formula


def alone(*operations):
    return replay([list(operations), []], network_of(bandwidth="8 gbit", latency="0 s")).ends[0]


def test_computations_of_one_cpu_follow_each_other():
    assert alone(Operation(CALC, 1000), Operation(CALC, 500)) == pytest.approx(1.5e-6)
    assert alone(Operation(CALC, 1000), Operation(CALC, 500, cpu=1)) == pytest.approx(1e-6)
    assert alone(Operation(CALC, 1000), Operation(CALC, 500, cpu=1, requires=[0])) == pytest.approx(1.5e-6)
    assert alone(Operation(CALC, 1000), Operation(CALC, 500, cpu=1, irequires=[0])) == pytest.approx(1e-6)
    assert alone() == 0.0


def test_a_message_goes_beside_a_computation():
    """1 GB/s, so a byte takes a nanosecond, and 2 us of latency."""
    network = network_of(bandwidth="8 gbit", latency="2 us")
    sender = [Operation(SEND, 1000, 1), Operation(CALC, 5000)]
    receiver = [Operation(CALC, 100), Operation(RECV, 1000, 0), Operation(CALC, 50, requires=[1])]
    assert replay([sender, receiver], network).ends == pytest.approx([5e-6, 3.05e-6])


def test_long_messages_wait_for_their_receive():
    network = network_of(bandwidth="8 gbit", latency="2 us", eager_bytes=10)
    sender = [Operation(SEND, 1000, 1), Operation(CALC, 1, requires=[0])]
    receiver = [Operation(CALC, 9000), Operation(RECV, 1000, 0, requires=[0])]
    assert replay([sender, receiver], network).ends == pytest.approx([10.001e-6, 12e-6])


def test_two_messages_share_a_port():
    network = network_of(bandwidth="8 gbit", latency="0 s")
    senders = [[Operation(SEND, 1000, 2)], [Operation(SEND, 1000, 2)]]
    receiver = [Operation(RECV, 1000, 0), Operation(RECV, 1000, 1)]
    assert replay([*senders, receiver], network).ends[2] == pytest.approx(2e-6)


def test_what_waits_for_ever_is_named():
    with pytest.raises(Deadlock, match="rank 1 waits for l1: recv 8b from 0 tag 5, and 0 more operations"):
        replay([[], [Operation(RECV, 8, 0, 5)]], network_of(bandwidth="8 gbit", latency="0 s"))
    circle = [Operation(CALC, 1, requires=[1]), Operation(CALC, 1, requires=[0])]
    with pytest.raises(Deadlock, match="rank 0 waits for 2 operations, each of which waits for another one"):
        replay([circle], network_of(bandwidth="8 gbit", latency="0 s"))


# ---- the command


@pytest.fixture
def command(tmp_path, capsys):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def test_the_command(command, tmp_path):
    Traced(tmp_path, "dpsgd", 4, "fast", CONSTANT)
    code, out, err = command("replay", tmp_path / "run.goal", "--network", "1gbit,50us")
    assert code == 0 and not err
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert lines["ranks"].startswith("4, ") and lines["sent"].startswith("64 messages, 8.50 KiB")
    assert lines["end"] == "least 0.0802 s (rank 0), median 0.0802 s, most 0.0802 s (rank 3)"


@pytest.mark.parametrize(
    ("text", "network", "code", "named"),
    [
        ("num_ranks 1\n", "1gbit,-5us", 2, "'-5us'"),
        ("num_ranks 1\nrank 0 {\nfly 5\n}\n", "1gbit,5us", 2, "x.goal, line 3: 'fly 5': allowed"),
        ("num_ranks 1\nrank 0 {\nrecv 8b from 0\n}\n", "1gbit,5us", 1, "rank 0 waits for l1: recv 8b from 0 tag 0"),
    ],
)
def test_wrong_input_is_named(text, network, code, named, command, tmp_path):
    (tmp_path / "x.goal").write_text(text)
    found, out, err = command("replay", tmp_path / "x.goal", "--network", network)
    (line,) = err.splitlines()
    assert found == code and not out and named in line
