"""What a rank does in a recorded step when another rank has failed or has asked all ranks to stop."""

import pytest

from grsgd.comm.stop_signal import Stopped
from grsgd.own_loop.stops import FAILURE_SECONDS, LISTENING_SECONDS, Stops


class Signal:
    """A stop signal that has arrived."""

    def __init__(self, failed: bool):
        self.failed = failed

    def watch(self):
        raise Stopped("rank 1 has failed")


def test_without_a_recording_nothing_stops_a_loop():
    stops = Stops(lambda: 0.0)
    stops.watch()
    stops.watch_in_step()


def test_a_request_to_stop_is_seen_at_once():
    stops = Stops(lambda: 0.0)
    stops.signal = Signal(failed=False)
    for watch in (stops.watch, stops.watch_in_step):
        with pytest.raises(Stopped):
            watch()


def test_a_step_goes_on_for_a_while_after_a_failure():
    now = [100.0]
    stops = Stops(lambda: now[0])
    for begin in (100.0, 200.0):  # the second recording has a signal of its own
        stops.signal = Signal(failed=True)
        now[0] = begin
        stops.watch_in_step()
        now[0] = begin + FAILURE_SECONDS
        stops.watch_in_step()
        with pytest.raises(Stopped):
            stops.watch()
        now[0] = begin + FAILURE_SECONDS + 1e-3
        with pytest.raises(Stopped):
            stops.watch_in_step()


def test_failures_are_heard_in_the_background():
    """While the rank is in a call of MPI, too; what is heard is raised by the next look."""
    now, looks = [0.0], []
    stops = Stops(lambda: now[0])
    listening = next(stops.attend())
    assert not listening.Test()
    stops.signal = Signal(failed=True)
    stops.signal.watch_failures = lambda: looks.append(now[0]) or stops.signal.watch()
    for now[0] in (1.0, 1.001, 1.0 + LISTENING_SECONDS):
        assert not listening.Test()
    assert looks == [1.0, 1.0 + LISTENING_SECONDS]


@pytest.mark.parametrize("failed, told", [(False, ["rank 3 has failed"]), (True, [])])
def test_a_rank_that_ends_the_job_tells_the_others(failed, told):
    """Unless it has learnt of the failure from them."""
    said, repeated = [], []
    stops = Stops(lambda: 0.0)
    stops.tell_failure(3), stops.repeat(1)
    stops.signal = Signal(failed)
    stops.signal.fail, stops.signal.repeat = said.append, repeated.append
    stops.tell_failure(3), stops.repeat(1)
    assert said == told and repeated == [1]
