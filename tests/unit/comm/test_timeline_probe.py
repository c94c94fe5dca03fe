"""How schedules and messages are recorded by the clock."""

import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.pollables import Compute, Delay, Signal, Until
from grsgd.comm.timeline_probe import MAX_NAMED, TimelineBackend, note, observed
from grsgd.runs.timeline import Timeline
from tests.support.polled_ranks import Done, Post, PostBackend


def test_a_schedule_by_the_clock():
    """Computing, waiting and merging follow each other without a gap."""
    driver, timeline = MpiDriver(), Timeline(0, time.perf_counter)
    flag = Signal("a flag")

    def inner():
        yield Compute(lambda: time.sleep(0.02))
        time.sleep(0.01)
        until = time.perf_counter() + 0.03
        yield Until(lambda: time.perf_counter() > until, "a moment"), Delay(0.0)
        flag.set()
        yield flag
        return "value"

    timeline.begin(time.perf_counter())
    assert driver.run(observed(inner(), timeline)) == "value"
    longest = {span.track: span for span in sorted(timeline.spans, key=lambda span: span.end - span.begin)}
    least = {("compute", "gradient"): 0.02, ("merge", "inner"): 0.01, ("wait", "a moment"): 0.03}
    assert {(span.track, span.name) for span in longest.values()} == least.keys()
    assert all(span.end - span.begin >= least[span.track, span.name] for span in longest.values())
    assert all(later.begin >= earlier.end for earlier, later in zip(timeline.spans, timeline.spans[1:], strict=False))


def test_errors_reach_the_schedule_through_the_recording():
    timeline, seen = Timeline(0, time.perf_counter), []

    def careful():
        try:
            yield Until(lambda: 1 / 0, "never")
        except ZeroDivisionError:
            seen.append("here")
            yield ()
            raise

    with pytest.raises(ZeroDivisionError):
        MpiDriver().run(observed(careful(), timeline))
    assert seen == ["here"]


def test_a_backend_that_is_recorded():
    """Messages are matched in order; of a receive from any rank the sender is asked for when it has come."""

    class Come:
        source, is_there = 1, False

        def Test(self):
            return self.is_there

    class Two:
        size, rank, lost, survives_deaths = 2, 0, (), False

        def Isend(self, array, dest, tag):
            return Come()

        Issend = Isend

        def Irecv(self, array, source, tag):
            return Come()

    now = iter(range(100))
    timeline = Timeline(0, lambda: next(now))
    timeline.begin(0)
    comm = Communicator(TimelineBackend(Two(), timeline))
    assert comm.rank == 0 and comm.lost == () and not comm.survives_deaths
    array = np.zeros(3, np.uint8)
    messages = [comm.Isend(array, 1, 5), comm.Issend(array, 1, 5)]
    messages += [comm.Irecv(array, 1, 6), comm.Irecv(array, ANY_RANK, 6)]
    assert not any(message.Test() for message in messages) and not timeline.spans
    for message in messages:
        message.request.request.is_there = True
        assert message.Test() and message.Test()
    found = [(span.track, span.peer, span.nbytes, span.tag, span.message) for span in timeline.spans]
    assert found == [
        ("send", 1, 3, 5, ("", 0, 1, 5, 0)),
        ("send", 1, 3, 5, ("", 0, 1, 5, 1)),
        ("receive", 1, 3, 6, ("", 1, 0, 6, 0)),
        ("receive", 1, 3, 6, ("", 1, 0, 6, 1)),
    ]
    assert [span.begin for span in timeline.spans] == [0, 1, 2, 3]


def test_collective_calls_and_other_groups_are_recorded():
    """Ranks of a subset keep their numbers on the timeline, and messages of other groups have other names."""
    now = iter(range(100))
    timeline = Timeline(0, lambda: next(now))
    timeline.begin(0)
    post = Post(4)
    end = TimelineBackend(Whole(post, 2), timeline)
    array = np.zeros(3, np.uint8)
    groups = end, end.dup(), end.dup(), end.subset([3, 2]), end.subset([3, 2])
    for group in groups:
        other = 0 if group.backend.size == 2 else 1
        assert group.Isend(array, 0, 5).Test() and group.Ibcast(array, other).Test()
        assert group.Ibcast(array, group.rank).Test()
        assert group.Iallreduce(array).Test()
    spans = [timeline.spans[begin : begin + 4] for begin in range(0, 20, 4)]
    names = ["", "/dup.0", "/dup.1", "/(3, 2).0", "/(3, 2).1"]
    firsts, seconds = [0] * 3 + [3] * 2, [1] * 3 + [3] * 2
    for (sent, received, root, total), name, first, second in zip(spans, names, firsts, seconds, strict=True):
        assert sent.message == (name, 2, first, 5, 0) and sent.peer == first
        assert (received.track, received.peer) == ("receive", second) and (root.track, root.peer) == ("send", None)
        assert (total.track, total.name, total.nbytes, total.peer) == ("send", "all-reduce", 3, None)


class Whole(PostBackend):
    """A backend whose collective calls are complete at once."""

    def Ibcast(self, array, root):
        return Done()

    def Iallreduce(self, array):
        return Done()

    def dup(self):
        return self

    def subset(self, ranks):
        return Whole(Post(len(ranks)), ranks.index(self.rank))


def test_many_pollables_are_counted():
    timeline = Timeline(0, lambda: 0.0)
    timeline.begin(0.0)
    note(timeline, [Delay(2.0), *(Signal(f"flag {number}") for number in range(MAX_NAMED + 2))], 1.0, 4.0)
    delay, wait = timeline.spans
    assert (delay.track, delay.name, delay.begin, delay.end) == ("compute", "delay", 1, 3)
    assert wait.name.endswith(f"flag {MAX_NAMED - 1}, and 2 more") and (wait.begin, wait.end) == (3, 4)
    note(timeline, [Signal(f"flag {number}") for number in range(MAX_NAMED)], 4.0, 5.0)
    assert timeline.spans[-1].name.endswith(f"flag {MAX_NAMED - 1}")


def test_a_receive_from_any_rank_asks_a_status_for_its_sender(monkeypatch):
    class Status:
        def Get_source(self):
            return self.source

    class Request:
        def __init__(self, source):
            self.source, self.is_there = source, False

        def Test(self, status):
            status.source = self.source
            return self.is_there

    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(Status=Status, Request=Request)))
    timeline = Timeline(0, lambda: 1.0)
    timeline.begin(0.0)
    requests = [Request(source) for source in (0, 1, -1, 2)]
    whole = SimpleNamespace(size=2, rank=1, Irecv=lambda *_: requests[len(timeline.spans)])
    end = TimelineBackend(whole, timeline, members=[7, 8])
    for request in requests:
        receiving = end.Irecv(np.zeros(3, np.uint8), ANY_RANK, 6)
        assert not receiving.Test()
        request.is_there = True
        assert receiving.Test() and receiving.source == request.source
    assert [span.peer for span in timeline.spans] == [7, 8, None, None]
    assert [span.message for span in timeline.spans[:3]] == [("", 7, 8, 6, 0), ("", 8, 8, 6, 0), None]
