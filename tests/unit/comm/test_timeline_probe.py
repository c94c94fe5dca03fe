"""How schedules and messages are recorded by the clock."""

import time

import numpy as np
import pytest

from grsgd.comm.backend import ANY_RANK
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.pollables import Compute, Delay, Signal, Until
from grsgd.comm.timeline_probe import TimelineBackend, observed
from grsgd.runs.timeline import Timeline


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
