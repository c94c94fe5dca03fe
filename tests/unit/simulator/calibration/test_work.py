"""What a step of an algorithm takes of a processor more than one alone: what counts, and what does not."""

import threading
import time

import pytest

from grsgd.comm.pollables import Compute
from grsgd.simulator.calibration.work import MeteredCommunicator, WorkMeter


def busy(seconds: float = 0.02):
    """Take so many seconds of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def drive(schedule):
    """Return what a schedule returns; while it waits, the processor is busy, too."""
    try:
        while True:
            next(schedule)
            busy()
    except StopIteration as end:
        return end.value


def test_what_a_schedule_does_between_waits_counts():
    meter = WorkMeter(0.01)

    def schedule():
        busy()
        yield
        busy()
        return "end"

    assert drive(meter.metered(schedule())) == "end"
    assert 0.04 <= meter.seconds < 0.055


def test_gradients_count_less_what_they_take_alone():
    meter = WorkMeter(0.015)

    def schedule():
        yield Compute(lambda: None, 2)

    drive(meter.metered(schedule()))  # computes for 20 ms
    assert 0.02 - 2 * 0.015 <= meter.seconds < 0.0


def test_calls_of_mpi_do_not_count():
    """Neither those of the schedule, nor those while it waits, nor those of another thread."""
    meter = WorkMeter(0.01)

    def schedule():
        meter.without(busy)
        busy()
        yield

    metered = meter.metered(schedule())
    next(metered)
    meter.without(busy)
    thread = threading.Thread(target=meter.without, args=(busy,))
    thread.start()
    thread.join()
    assert 0.02 <= meter.seconds < 0.035


def test_messages_of_a_subset_do_not_count_either():
    class Backend:
        size, rank, meter = 2, 0, WorkMeter(0.01)

        def Iprobe(self, source, tag):
            busy()
            return False

        def subset(self, ranks):
            return self

    comm = MeteredCommunicator(Backend()).subset([0, 1])

    def schedule():
        busy()
        comm.Iprobe(1, tag=2)
        yield

    next(Backend.meter.metered(schedule()))
    assert 0.02 <= Backend.meter.seconds < 0.035


def test_an_error_is_raised_where_the_schedule_waits():
    meter, found = WorkMeter(0.01), []

    def schedule():
        try:
            yield
        except ValueError as error:
            found.append(error)
            busy()
        yield

    metered = meter.metered(schedule())
    next(metered)
    metered.throw(ValueError())
    assert len(found) == 1 and meter.seconds >= 0.02
    with pytest.raises(StopIteration):
        next(metered)
