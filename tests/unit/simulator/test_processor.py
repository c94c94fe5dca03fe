"""What messages take of a rank's processor, against sums that can be done by hand."""

import itertools
import json
import math

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from grsgd.comm.allreduce import ring_allreduce
from grsgd.comm.communicator import receive_if_come
from grsgd.comm.engine import SLEEP_SECONDS
from grsgd.comm.pollables import Compute, Delay
from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.runs.run_file import load_run
from grsgd.simulator.calibration.shares import prolonged, trusted
from grsgd.simulator.calibration.spread import mean_and_quartiles
from grsgd.simulator.driver import SimulatedDriver, run_all
from grsgd.simulator.fabric import MessageFabric
from grsgd.simulator.flows import Network
from grsgd.simulator.network import ComputeSpec, NetworkSpec, ProcessorSpec, network
from grsgd.simulator.processor import Processor, number_of_looks
from grsgd.simulator.quota import Quota
from grsgd.simulator.run import simulate
from grsgd.simulator.tracing.instrumentation import Instrumentation
from grsgd.simulator.tracing.replay import replay
from tests.support.seeded import untimed

SEND, RECEIVE, SEND_BYTE, RECEIVE_BYTE, LATENCY, BANDWIDTH = 3e-3, 5e-3, 2e-9, 7e-9, 1e-3, 1e8
COSTS = {"send": "3ms", "receive": "5ms", "send_byte": "2ns", "receive_byte": "7ns"}


class Ranks:
    """Some ranks on a switch, whose computations take as many seconds as is said."""

    def __init__(self, n: int, costs: dict, seconds=1.0, slowdown=1.0, eager_bytes=10**7, latency="1ms"):
        self.env = simpy.Environment()
        self.drivers = [SimulatedDriver(self.env, rank, lambda rank, step: seconds) for rank in range(n)]
        spec = NetworkSpec(bandwidth="0.8gbit", latency=latency, eager_bytes=eager_bytes, processor=costs)
        flows = Network(self.env, spec, n)
        for driver in self.drivers:
            driver.processor = Processor(flows, spec.processor, slowdown, driver.waited, driver.rank)
        self.fabric = MessageFabric(flows, self.drivers, [driver.processor for driver in self.drivers])
        self.comms = self.fabric.communicators()

    def run(self, *schedules) -> list:
        return run_all(self.env, self.drivers, schedules)

    def send(self, rank: int, dest: int, nbytes: int, times: int = 1):
        for _ in range(times):
            yield self.comms[rank].Isend(np.zeros(nbytes, np.uint8), dest)

    def receive(self, rank: int, source: int, nbytes: int, times: int = 1):
        """Return when the last one is there."""
        for _ in range(times):
            yield self.comms[rank].Irecv(np.zeros(nbytes, np.uint8), source)
        return self.env.now

    def late_send(self):
        """Compute twice on rank 0, and send then to rank 1."""
        for _ in range(2):
            yield Compute(lambda: None)
        yield from self.send(0, 1, 8)

    def compute(self, rank: int, *background):
        """Return when a computation is over beside which these schedules go on."""
        for schedule in background:
            self.drivers[rank].start(schedule)
        yield Compute(lambda: None)
        return self.env.now


@pytest.mark.parametrize("eager_bytes", [0, 10**7])
@pytest.mark.parametrize("nbytes", [1, 100_000])
def test_between_ranks_that_wait_a_message_takes_the_time_of_the_wire(nbytes, eager_bytes):
    ranks = Ranks(2, COSTS, eager_bytes=eager_bytes)
    _, end = ranks.run(ranks.send(0, 1, nbytes), ranks.receive(1, 0, nbytes))
    assert end == pytest.approx(LATENCY + nbytes / BANDWIDTH, rel=1e-12)


def test_between_ranks_that_compute_it_takes_the_time_of_both_processors_as_well():
    ranks, nbytes, times = Ranks(2, COSTS), 100_000, []

    def receiving():
        times.append((yield from ranks.receive(1, 0, nbytes)))

    ranks.run(ranks.compute(0, ranks.send(0, 1, nbytes)), ranks.compute(1, receiving()))
    wire = LATENCY + nbytes / BANDWIDTH  # the send is posted before rank 0 computes
    assert times == [pytest.approx(RECEIVE + nbytes * RECEIVE_BYTE + wire, rel=1e-12)]


def test_what_comes_together_is_taken_in_one_after_the_other():
    ranks, times = Ranks(3, COSTS), []

    def both():
        yield [ranks.comms[0].Irecv(np.zeros(8, np.uint8), source) for source in (1, 2)]
        times.append(ranks.env.now)

    ranks.run(ranks.compute(0, both()), ranks.send(1, 0, 8), ranks.send(2, 0, 8))
    cost = RECEIVE + 8 * RECEIVE_BYTE
    assert times == [pytest.approx(LATENCY + 2 * 8 / BANDWIDTH + 2 * cost, rel=1e-6)]


@pytest.mark.parametrize("slowdown", [1.0, 2.5])
def test_a_gradient_takes_longer_by_what_messages_take(slowdown):
    ranks, nbytes, times = Ranks(2, COSTS, slowdown=slowdown), 1000, 7
    receiving = ranks.compute(1, ranks.receive(1, 0, nbytes, times))
    _, end = ranks.run(ranks.send(0, 1, nbytes, times), receiving)
    assert end == pytest.approx(1 + slowdown * times * (RECEIVE + nbytes * RECEIVE_BYTE), rel=1e-12)


def test_a_gradient_takes_longer_by_what_is_sent_meanwhile():
    ranks = Ranks(2, COSTS)
    sending = ranks.compute(0, ranks.send(0, 1, 1000, 7))
    begin, _ = ranks.run(sending, ranks.receive(1, 0, 1000, 7))
    assert begin == pytest.approx(1 + 7 * (SEND + 1000 * SEND_BYTE), rel=1e-12)


def test_what_was_posted_long_before_a_gradient_takes_nothing_of_it():
    ranks = Ranks(2, COSTS)

    def sending():
        yield from ranks.send(0, 1, 1000)
        yield Delay(2 * SEND)
        return (yield from ranks.compute(0))

    end, _ = ranks.run(sending(), ranks.receive(1, 0, 1000))
    assert end == pytest.approx(1 + 2 * SEND, rel=1e-12)


@pytest.mark.parametrize("eager_bytes", [0, 10**7])
def test_a_message_that_has_left_takes_nothing_of_the_next_gradient(eager_bytes):
    """The wire's time has the sender's work in it, even where that was measured to take longer."""
    ranks, nbytes = Ranks(2, {"send_byte": "1us"}, eager_bytes=eager_bytes), 1000

    def sending():
        yield from ranks.send(0, 1, nbytes)
        yield Delay(1.5 * nbytes / BANDWIDTH + 2 * LATENCY)
        return ranks.env.now, (yield from ranks.compute(0))

    (begin, end), _ = ranks.run(sending(), ranks.receive(1, 0, nbytes))
    assert end - begin == pytest.approx(1, rel=1e-9)


def test_a_rank_that_computes_notices_a_message_later():
    ranks = Ranks(2, {"reaction": "20ms"})
    times = []

    def background():
        times.append((yield from ranks.receive(1, 0, 8)))

    ranks.run(ranks.send(0, 1, 8), ranks.compute(1, background()))
    assert times == [pytest.approx(LATENCY + 8 / BANDWIDTH + 20e-3)]


def test_at_the_end_of_a_gradient_it_notices_all_that_has_come():
    ranks = Ranks(2, {"reaction": "20ms"}, seconds=5e-3)
    times = []

    def background():
        times.append((yield from ranks.receive(1, 0, 8)))

    ranks.run(ranks.send(0, 1, 8), ranks.compute(1, background()))
    assert times == [pytest.approx(5e-3)]


def gradients(number: int):
    """Schedule that computes so often, without a wait in between."""
    for _ in range(number):
        yield Compute(lambda: None)


@pytest.mark.parametrize(("thread", "end"), [(True, LATENCY + 20e-3), (False, 5e-3)])
def test_between_two_gradients_a_thread_notices_nothing_sooner(thread, end):
    ranks, times = Ranks(2, {"reaction": "20ms", "thread": thread}, seconds=5e-3), []

    def background():
        times.append((yield from ranks.receive(1, 0, 8)))

    def computing():
        ranks.drivers[1].start(background())
        yield from gradients(10)

    ranks.run(ranks.send(0, 1, 8), computing())
    assert times == [pytest.approx(end, abs=1e-6)]


def test_a_rank_with_a_thread_notices_what_has_come_as_it_begins_to_wait():
    ranks, times = Ranks(2, {"reaction": "20ms", "thread": True}, seconds=5e-3), []

    def computing():
        receiving = ranks.comms[1].Irecv(np.zeros(8, np.uint8), 0)
        yield from gradients(2)
        yield receiving
        times.append(ranks.env.now)

    ranks.run(ranks.send(0, 1, 8), computing())
    assert times == [pytest.approx(10e-3)]


@pytest.mark.parametrize(("thread", "message"), [(True, 20e-3 + LATENCY), (False, 5e-3)])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_each_message_of_an_all_reduce_behind_short_gradients_takes_as_long_as_a_thread_is_late(n, thread, message):
    """Where the rank itself looked after each gradient, one would do for each of the 2 (n - 1) messages."""
    ranks, ends = Ranks(n, {"reaction": "20ms", "thread": thread}, seconds=5e-3), []

    def average(rank):
        yield from ring_allreduce(ranks.comms[rank], np.ones(8 * n, np.float32))
        ends.append(ranks.env.now)

    def computing(rank):
        ranks.drivers[rank].start(average(rank))
        yield from gradients(70)

    ranks.run(*map(computing, range(n)))
    assert ends == pytest.approx([2 * (n - 1) * message] * n, rel=1e-4)


@pytest.mark.parametrize("polls", [False, True])
def test_a_gradient_takes_longer_while_something_waits_in_the_background(polls):
    ranks = Ranks(2, {"polling": 0.25})
    background = [ranks.receive(1, 0, 8)] if polls else []
    late = ranks.compute(0) if not polls else ranks.late_send()
    _, end = ranks.run(late, ranks.compute(1, *background))
    assert end == pytest.approx(1.25 if polls else 1.0)


@pytest.mark.parametrize(("seconds", "wake"), [(0.0005, 0.0), (0.0079, 1e-3), (0.1, 2e-3)])
def test_a_rank_that_has_waited_for_long_has_to_wake(seconds, wake):
    ranks = Ranks(2, {"wake": "2ms"}, seconds=seconds, latency="0.1ms")

    def late():
        yield Compute(lambda: None)
        yield from ranks.send(0, 1, 8)

    _, end = ranks.run(late(), ranks.receive(1, 0, 8))
    assert end == pytest.approx(seconds + 1e-4 + 8 / BANDWIDTH + wake, rel=1e-4)


@pytest.mark.parametrize("reaction", ["0ms", "20ms", "5s"])
def test_what_is_noticed_at_the_end_of_a_gradient_prolongs_it(reaction):
    ranks, times = Ranks(2, COSTS | {"reaction": reaction}), 4
    receiving = ranks.compute(1, *(ranks.receive(1, 0, 1000) for _ in range(times)))
    _, end = ranks.run(ranks.send(0, 1, 1000, times), receiving)
    assert end == pytest.approx(1 + times * (RECEIVE + 1000 * RECEIVE_BYTE), rel=1e-12)


QUOTA = {"share": 0.25, "period": "100ms", "spin": "0ms"}


@pytest.mark.parametrize(("waited", "end"), [(0.0, 1.0), (0.06, 0.94), (0.5, 0.9)])
def test_a_gradient_is_shorter_by_the_quota_that_is_left(waited, end):
    """As long as the rank has waited, but at most a period."""
    ranks = Ranks(1, QUOTA)

    def waiting():
        yield from ranks.compute(0)  # which leaves nothing
        yield Delay(waited)
        begin = ranks.env.now
        return (yield from ranks.compute(0)) - begin

    assert ranks.run(waiting()) == [pytest.approx(end)]


def by_ticks(quota: Quota, seconds: float, now: float, tick: float = 1e-5) -> float:
    """How long a rank computes that has not used any of its quota so far, going through it tick by tick."""
    ran, unused, end = 0.0, quota.period * quota.share, now
    while ran < seconds * quota.share:
        number = math.floor((end - quota.begin) / quota.period)
        if number != math.floor((end - tick - quota.begin) / quota.period):
            unused = quota.period * quota.share
        if unused > 0:
            unused, ran = unused - tick, ran + tick
        end += tick
    return end - now


@pytest.mark.parametrize("seconds", [0.003, 0.033, 0.0877])
@pytest.mark.parametrize("now", [0.5, 0.5123, 0.5157])
@pytest.mark.parametrize(("share", "period", "begin"), [(0.25, 0.008, 0.001), (0.125, 0.016, 0.0), (1.0, 0.01, 0.004)])
def test_a_quota_is_kept_period_by_period(share, period, begin, now, seconds):
    wanted = by_ticks(Quota(share, period, begin), seconds, now)
    assert Quota(share, period, begin).compute(seconds, now) == pytest.approx(wanted, abs=3e-4)


def test_what_a_short_computation_leaves_of_a_period_is_there_for_the_next():
    quota = Quota(0.25, 0.1)
    assert quota.compute(0.08, now=1.0) == pytest.approx(0.02)
    assert quota.unused == pytest.approx(0.02)
    assert quota.compute(0.1, now=1.02) == pytest.approx(0.08 + 0.02)  # 0.005 at once, and 0.02 in the next period
    assert quota.compute(0.02, now=1.5) == pytest.approx(0.005)


def test_what_was_taken_beyond_a_period_is_missing_in_the_next_ones():
    quota = Quota(0.25, 0.1)
    quota.take(0.25, now=0.01)
    assert quota.compute(0.01, now=0.15) == pytest.approx(0.05 + (0.05 + 0.01) * 0.25)
    quota.take(0.25, now=1.01)
    assert quota.compute(0.1, now=1.3) == pytest.approx(0.025)


@untimed
@given(st.lists(st.tuples(st.floats(0.0, 0.05), st.floats(0.0, 0.1)), min_size=2, max_size=30))
def test_no_message_overtakes_another_while_a_rank_stands_still(steps):
    quota, now, last = Quota(0.125, 0.016, 0.003), 0.0, 0.0
    for pause, seconds in steps:
        now += pause
        done = now + quota.use(seconds, now)
        assert done >= last - 1e-12
        last = done


def test_periods_of_ranks_begin_at_different_times():
    begins = sorted(Quota.of_rank(rank, 0.25, 1.0).begin for rank in range(8))
    assert min(late - early for early, late in itertools.pairwise([*begins, begins[0] + 1])) > 0.05


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_messages_take_of_the_quota_of_a_rank_that_waits(slowdown):
    """Each takes all of a period, so the rank stands still until the next one begins."""
    times, period = 5, slowdown * 0.1
    ranks = Ranks(2, QUOTA | {"exchange": "200ms"}, slowdown=slowdown, latency="1us")
    begin = max(ranks.run(ranks.compute(0), ranks.compute(1)))
    _, end = ranks.run(ranks.send(0, 1, 8, times), ranks.receive(1, 0, 8, times))
    assert (times - 1) * period < end - begin < (times + 1) * period


def test_what_messages_took_of_the_quota_is_missing_in_the_next_gradient():
    """Of the period that begins at 1.5 s: so the last part of the gradient waits for one more."""
    for times, end in ((0, 2.425), (3, 2.515)):
        ranks = Ranks(2, QUOTA | {"exchange": "40ms"}, latency="1us")

        def waiting(ranks=ranks, times=times):
            yield from ranks.compute(0)
            yield Delay(1.5 - ranks.env.now)
            yield from ranks.receive(0, 1, 8, times)
            return (yield from ranks.compute(0))

        def sending(ranks=ranks, times=times):
            yield Delay(1.5)
            yield from ranks.send(1, 0, 8, times)

        assert ranks.run(waiting(), sending())[0] == pytest.approx(end, abs=1e-4)


def test_of_a_long_message_those_bytes_count_that_have_come_in_this_period():
    """What came earlier was paid for by what would have been lost. A rank that computes adds up by itself."""
    nbytes = 10**7  # 0.1 s
    for computes, byte in ((False, RECEIVE_BYTE), (True, SEND_BYTE)):
        ranks = Ranks(2, COSTS | QUOTA, latency="1us")
        quota = ranks.drivers[0].processor.quota

        def waiting(ranks=ranks, computes=computes):
            if computes:
                yield from ranks.compute(0)
            return (yield from ranks.receive(0, 1, nbytes))

        def sending(ranks=ranks):
            yield Delay(1.04)
            yield from ranks.send(1, 0, nbytes)

        assert ranks.run(waiting(), sending())[0] == pytest.approx(1.14, rel=1e-3)
        assert quota.period - quota.unused == pytest.approx(0.04 * BANDWIDTH * byte, rel=1e-3)


def test_looks_for_messages_take_of_the_quota():
    """As many as a real wait has, of which each is as much longer than the one before as the file says."""
    spec = ProcessorSpec(**QUOTA, look="80us", full_sleep="1ms")
    waited, looks, in_time = 0.0, 0, 0
    while waited < 0.35:
        waited += spec.look * spec.share + min(waited, SLEEP_SECONDS)
        looks += 1
        in_time += waited > 0.3
    assert number_of_looks(waited, spec) == pytest.approx(looks, rel=0.05)
    ranks = Ranks(2, QUOTA | {"look": "80us", "full_sleep": "1ms"})

    def waiting():
        yield Delay(1.0)
        yield from ranks.receive(0, 1, 8)

    def sending():
        yield Delay(1.349)
        yield from ranks.send(1, 0, 8)

    ranks.run(waiting(), sending())
    quota = ranks.drivers[0].processor.quota
    assert quota.period - quota.unused == pytest.approx(in_time * 80e-6, rel=0.05)  # since 1.3 s


def test_what_an_algorithm_does_itself_takes_time_of_each_step(tmp_path):
    config, times = parse(CONFIG | {"algorithm": {"name": "ring_allreduce"}}), []
    for work in (0.0, 0.004):
        compute = ComputeSpec(median=0.02, slowdown={1: 2.0}, work=work)
        spec = network("1gbit,50us").model_copy(update={"compute": compute})
        simulate(config, 3, spec, tmp_path / "run.h5", timing_only=True)
        times.append(load_run(tmp_path / "run.h5").curve["time"][-1])
    assert times[1] - times[0] == pytest.approx(6 * 0.004 * 2.0)  # the slow rank decides


CONFIG = {
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"name": "synthetic", "samples": 256, "batch_size": 8},
    "train": {"steps": 6},
}


@pytest.mark.parametrize("name", ["ring_allreduce", "grsgd", "gossip", "parameter_server", "cssgd", "lasgd"])
def test_processors_that_messages_take_nothing_of_change_nothing(name, tmp_path):
    config = parse(CONFIG | {"algorithm": {"name": name}})
    found = []
    for costs in (None, ProcessorSpec()):
        spec = network("1gbit,50us").model_copy(update={"processor": costs})
        simulate(config, 5, spec, tmp_path / "run.h5", "lognormal:0.001,0.5")
        found.append(load_run(tmp_path / "run.h5"))
    assert (found[0].curve["time"] == found[1].curve["time"]).all()
    assert (found[0].ranks["compute_seconds"] == found[1].ranks["compute_seconds"]).all()


@pytest.mark.parametrize("quota", [{}, QUOTA | {"exchange": "1ms", "look": "0.2ms"}])
@pytest.mark.parametrize("name", ["ring_allreduce", "grsgd", "gossip", "parameter_server", "cssgd", "lasgd"])
def test_costs_make_steps_longer_and_runs_repeatable(name, quota, tmp_path):
    config = parse(CONFIG | {"algorithm": {"name": name}})
    times = []
    costly = ProcessorSpec(**COSTS, **quota, reaction="1ms", wake="1ms")
    for costs in (None, costly, costly):
        spec = network("1gbit,50us").model_copy(update={"processor": costs})
        simulate(config, 5, spec, tmp_path / "run.h5", "lognormal:0.001,0.5", timing_only=True)
        times.append(load_run(tmp_path / "run.h5").curve["time"])
    assert (times[1] == times[2]).all()
    assert quota or times[1][-1] > times[0][-1]  # what is left of a quota makes them shorter


@pytest.mark.parametrize("quota", [False, True])
@pytest.mark.parametrize("computes", [False, True])
def test_a_message_that_a_probe_has_found_is_received_at_once(computes, quota):
    """The receiver's loop takes no simulated time. The message's share of the processor prolongs the next gradient, or
    the gradient under way."""
    times = []
    for sends in (False, True):
        ranks = Ranks(2, COSTS | (QUOTA | {"exchange": "150ms"} if quota else {}), latency="1us")

        def looking(ranks=ranks, sends=sends):
            yield Delay(0.45)
            come = receive_if_come(ranks.comms[0], 0, 8)
            assert (come is not None) == sends and ranks.env.now == pytest.approx(0.45)

        def look_and_compute(ranks=ranks, looking=looking):
            if computes:
                return (yield from ranks.compute(0, looking()))
            yield from looking()
            return (yield from ranks.compute(0))

        times.append(ranks.run(look_and_compute(), ranks.send(1, 0, 8) if sends else iter(()))[0])
    assert times[1] > times[0] or not (computes or quota)  # between ranks that wait the latency has it already


@pytest.mark.parametrize("name", ["gosgd", "adpsgd", "grsgd", "lasgd", "parameter_server", "easgd", "dpsgd"])
def test_a_run_that_diverges_ends_whatever_messages_take(name, tmp_path):
    costs = COSTS | QUOTA | {"exchange": "3ms", "look": "0.2ms", "reaction": "10ms", "thread": True}
    spec = network("1gbit,50us").model_copy(update={"processor": ProcessorSpec(**costs)})
    config = parse(CONFIG | {"algorithm": {"name": name}, "optimizer": {"lr": 1e9}, "train": {"steps": 40}})
    simulate(config, 5, spec, tmp_path / "run.h5", "lognormal:0.05,0.1")
    assert load_run(tmp_path / "run.h5").attributes["ended"] == "diverged"


def test_they_are_as_slow_as_the_computations(tmp_path):
    """The slowdown of a file counts for both, or, where ``--compute`` says how long steps take, for none."""
    config = parse(CONFIG | {"algorithm": {"name": "dpsgd"}})
    spec = network("1gbit,50us").model_copy(
        update={"processor": ProcessorSpec(**COSTS), "compute": ComputeSpec(median=0.02, slowdown={1: 3.0})}
    )
    found = []
    for compute in ("constant:0.02", None):
        simulate(config, 3, spec, tmp_path / "run.h5", compute)
        found.append(load_run(tmp_path / "run.h5").ranks["compute_seconds"])
    assert found[0][0] == pytest.approx(found[0][1]) and found[1][1] > 2 * found[1][0]


@pytest.mark.parametrize("late", [False, True])
def test_broadcasts_are_on_a_timeline_when_they_are_received(late, tmp_path):
    """Also where the receive is posted between the arrival and its being taken in."""
    config = parse(CONFIG | {"algorithm": {"name": "cssgd", "r": 2}})
    spec = network("1gbit,50us").model_copy(
        update={"processor": ProcessorSpec(**COSTS, reaction="50ms" if late else "0ms")}
    )
    recording = Instrumentation(timeline=tmp_path / "run.json")
    simulate(config, 4, spec, tmp_path / "run.h5", "constant:0.01", recording=recording)
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    begun, ended = ([event["id"] for event in events if event["ph"] == phase] for phase in "sf")
    assert sorted(begun) == sorted(ended) and begun


def test_processes_may_die_while_messages_are_taken_in(tmp_path):
    config = parse(CONFIG | {"algorithm": {"name": "grsgd"}, "faults": {"die": {2: 0.02, 3: 0.05}}})
    spec = network("1gbit,50us").model_copy(update={"processor": ProcessorSpec(**COSTS, reaction="1ms")})
    simulate(config, 5, spec, tmp_path / "run.h5", "lognormal:0.01,0.5")
    assert load_run(tmp_path / "run.h5").attributes["ended"] == "completed"


def test_the_file_of_a_network_names_them(tmp_path):
    file = tmp_path / "network.toml"
    file.write_text('bandwidth = "1gbit"\nlatency = "50us"\n[processor]\nsend = "3us"\nreceive_byte = "0.2ns"\n')
    spec = network(str(file))
    assert spec.processor.send == pytest.approx(3e-6) and spec.processor.receive_byte == pytest.approx(2e-10)
    assert "processor" in spec.summary()


def test_a_trace_has_no_processors(tmp_path):
    config = parse(CONFIG | {"algorithm": {"name": "dpsgd"}})
    spec = network("1gbit,50us").model_copy(update={"processor": ProcessorSpec(**COSTS), "name": "mine.toml"})
    recording = Instrumentation(trace=tmp_path / "run.goal")
    with pytest.raises(ConfigError, match=r"--trace: not on a network .* leave \[processor\] out of mine.toml"):
        simulate(config, 3, spec, tmp_path / "run.h5", "constant:0.001", recording=recording)
    with pytest.raises(ConfigError, match="replay: not on a network"):
        replay([[], []], spec)


def test_a_timeline_shows_that_gradients_take_longer(tmp_path):
    config = parse(CONFIG | {"algorithm": {"name": "dpsgd"}})
    seconds = []
    for costs in (None, ProcessorSpec(**COSTS)):
        spec = network("1gbit,50us").model_copy(update={"processor": costs})
        recording = Instrumentation(timeline=tmp_path / "run.json")
        simulate(config, 3, spec, tmp_path / "run.h5", "constant:0.01", recording=recording)
        events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
        seconds.append(max(event["ts"] + event["dur"] for event in events if event["ph"] == "X"))
    assert seconds[1] > seconds[0] > 0


def test_a_moment_in_which_the_machine_stood_still_does_not_decide_how_late_a_thread_is():
    waits = np.linspace(0.0, 20e-3, 41)
    assert mean_and_quartiles(waits).median == pytest.approx(10e-3)
    assert mean_and_quartiles([*waits, 1.4]).median == pytest.approx((41 * 10e-3 + 45e-3) / 42, rel=0.02)


def test_shares_by_the_clock_or_of_the_processor():
    """The clock's where their mean is known; of too few, or of scattered ones, the processor's."""
    known = [np.array([0.1 + 0.001 * k, 0.2]) for k in range(6)]
    assert trusted(known) == pytest.approx([0.1 + 0.001 * k for k in range(6)])
    assert trusted(known[:3]) == [0.2] * 3
    assert trusted([np.array([0.1 * (-1) ** k, 0.3]) for k in range(20)]) == [0.3] * 20


def test_a_thread_takes_what_it_has_had_of_the_processor():
    """Whatever the rest takes at the same time."""
    without, beside = np.array([1.0, 1.1, 0.1]), np.array([1.5, 2.4, 0.4])
    assert prolonged(without, beside, by_thread=True) == pytest.approx([0.5, 0.1])
    assert prolonged(without, beside, by_thread=False) == pytest.approx([0.5, 1.3 / 1.1])


@pytest.mark.parametrize("name", ["ring_allreduce", "local_sgd", "diloco", "dpsgd", "lasgd"])
def test_messages_of_ranks_with_quotas_keep_their_order(name, tmp_path):
    """Parts of a model that does not divide evenly are told apart by their sizes."""
    config = parse(CONFIG | {"algorithm": {"name": name}, "train": {"steps": 40}})
    costs = COSTS | QUOTA | {"period": "8ms", "exchange": "0.6ms", "look": "0.2ms", "reaction": "5ms", "wake": "0.1ms"}
    compute = ComputeSpec(median=0.045, sigma=0.01, slowdown={0: 2.0})
    spec = network("100mbit,100us").model_copy(update={"processor": ProcessorSpec(**costs), "compute": compute})
    simulate(config, 7, spec, tmp_path / "run.h5", timing_only=True)
    assert load_run(tmp_path / "run.h5").ranks["steps"].min() > 0
