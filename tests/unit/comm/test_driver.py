"""The driver: schedules in the foreground and in the background, moved by a thread or by the trainer."""

import os
import threading
import time

import pytest

from grsgd.comm import driver as module
from grsgd.comm import engine, pollables
from grsgd.comm.driver import MpiDriver, WaitTimeout, available_cores
from grsgd.comm.pollables import Compute, Delay, Signal, Until
from grsgd.control_groups import GroupQuota

MODES = ("thread", "inline")


class Countdown:
    """True from the given number of tests on."""

    def __init__(self, tests=3):
        self.left = tests

    def Test(self):
        self.left -= 1
        return self.left <= 0

    def __str__(self):
        return "a countdown"


class Broken:
    def Test(self):
        raise OSError("the network is down")


@pytest.fixture(params=MODES)
def driver(request):
    driver = MpiDriver(rank=3, timeout=20.0, progress_mode=request.param)
    yield driver
    driver.close()


@pytest.fixture
def inline():
    driver = MpiDriver(progress_mode="inline", timeout=20.0)
    yield driver
    driver.close()


def waits_for(*pollables, value=None):
    yield from pollables
    return value


def wait_until(condition, seconds=10.0):
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline, "it never came"
        time.sleep(1e-3)


PAUSE = 2.0**-7


class FalseTime:
    """Of a clock that stands still unless ``now`` is set."""

    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def false_time(monkeypatch):
    """The time of waits in the foreground, which goes on by `PAUSE` between two looks."""
    false = FalseTime()

    def pause(*_):
        false.now += PAUSE

    monkeypatch.setattr(module, "time", false)
    monkeypatch.setattr(module, "back_off", pause)
    monkeypatch.setattr(pollables, "perf_counter", false.perf_counter)
    return false


# ---- foreground


def test_run_returns_the_value(driver):
    assert driver.run(waits_for(Countdown(), Countdown(1), value=42)) == 42


def test_run_without_a_schedule(driver):
    assert driver.run(None) is None


def test_a_schedule_may_yield_nothing_one_or_several(driver):
    pollables = [Countdown(2), Countdown(5), Countdown(1)]
    assert driver.run(waits_for(None, [], (), tuple(pollables), iter([Countdown()]), value="done")) == "done"
    assert all(pollable.left <= 0 for pollable in pollables)


def test_a_schedule_without_any_wait(driver):
    assert driver.run(waits_for(value=1)) == 1


def test_schedules_compose(driver):
    seen = []

    def inner(name):
        yield Countdown()
        seen.append(name)
        return name

    def outer():
        first = yield from inner("a")
        second = yield from inner("b")
        return first + second

    assert driver.run(outer()) == "ab"
    assert seen == ["a", "b"]


def test_no_test_after_true(inline):
    """A finished MPI request must not be tested for what it was any more."""

    class Once:
        done = False

        def Test(self):
            assert not self.done
            self.done = True
            return True

    once = Once()
    inline.run(waits_for((once, Countdown(3))))
    assert once.done


def test_run_raises_what_the_schedule_raises(driver):
    def fails():
        yield Countdown()
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        driver.run(fails())


def test_run_raises_what_a_pollable_raises(driver):
    with pytest.raises(OSError, match="the network is down"):
        driver.run(waits_for(Broken()))


def test_a_schedule_learns_where_its_wait_was_broken_off(driver):
    """What goes wrong in a wait is raised at the yield: the schedule can clean up, or even go on."""
    cleaned = []

    def cautious():
        try:
            yield Broken()
        except OSError as error:
            cleaned.append(str(error))
        yield Countdown()
        return "recovered"

    def untidy():
        try:
            yield Broken()
        finally:
            cleaned.append("finally")

    assert driver.run(cautious()) == "recovered"
    with pytest.raises(OSError):
        driver.run(untidy())
    assert cleaned == ["the network is down", "finally"]


# ---- background


def test_background_value(driver):
    signal = Signal("go")
    handle = driver.start(waits_for(signal, value=7))
    assert not handle.Test()
    signal.set()
    wait_until(handle.Test)
    assert handle.value == 7
    assert handle.Test()  # and stays true


def test_wait_for_a_background_schedule(driver):
    handle = driver.start(waits_for(Delay(0.01), value=5))

    def outer():
        yield handle
        return handle.value

    assert driver.run(outer()) == 5


def test_background_schedule_without_a_wait(driver):
    handle = driver.start(waits_for(value="at once"))
    wait_until(handle.Test)
    assert handle.value == "at once"


def test_many_background_schedules(driver):
    handles = [driver.start(waits_for(Countdown(k), Delay(1e-3), Countdown(2), value=k)) for k in range(1, 30)]
    driver.run(waits_for(handles))
    assert [handle.value for handle in handles] == list(range(1, 30))


def test_background_schedules_that_wait_for_each_other(driver):
    signal = Signal("go")
    first = driver.start(waits_for(signal, value=1))
    second = driver.start(waits_for(first, value=2))
    signal.set()
    driver.run(waits_for(second))
    assert (first.value, second.value) == (1, 2)


def test_a_background_schedule_may_start_another(driver):
    started = []

    def parent():
        yield Countdown()
        started.append(driver.start(waits_for(Countdown(), value="child")))
        yield started[0]
        return "parent"

    handle = driver.start(parent())
    driver.run(waits_for(handle))
    assert (handle.value, started[0].value) == ("parent", "child")


def test_background_exception_surfaces_in_test(driver):
    def fails():
        yield Countdown()
        raise ZeroDivisionError("in the background")

    handle = driver.start(fails())

    def raised():
        try:
            return handle.Test()
        except ZeroDivisionError:
            return True

    wait_until(raised)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the background"):
            handle.Test()


def test_background_exception_surfaces_in_run(driver):
    handle = driver.start(waits_for(Countdown(), Broken()))
    with pytest.raises(OSError, match="the network is down"):
        driver.run(waits_for(handle))


def test_background_exception_at_once(driver):
    handle = driver.start(waits_for(Broken()))
    with pytest.raises(OSError, match="the network is down"):
        driver.run(waits_for(handle))


def test_a_failure_stops_no_other_schedule(driver):
    broken = driver.start(waits_for(Countdown(), Broken()))
    sound = driver.start(waits_for(Delay(0.01), value="sound"))
    with pytest.raises(OSError):
        driver.run(waits_for(broken))
    driver.run(waits_for(sound))
    assert sound.value == "sound"


def test_a_failure_that_nobody_waits_for_is_raised_at_the_next_poll(driver):
    """Once: at the beginning of the next step, in one that never waits."""
    broken = driver.start(waits_for(Countdown(3), Broken()))
    with pytest.raises(OSError, match="the network is down"):
        wait_until(driver.poll)
    assert broken.ended
    driver.poll()


def test_a_failure_that_nobody_waits_for_breaks_off_any_wait(driver):
    """Of another driver of the process, too: the other ranks may never answer that one either."""
    other = MpiDriver(progress_mode=driver.progress_mode)
    other.start(waits_for(Countdown(3), Broken()))
    with pytest.raises(OSError, match="the network is down"):
        driver.run(waits_for(Signal("never")))
    other.close()


def test_a_failure_that_somebody_has_seen_is_not_raised_again(driver):
    handle = driver.start(waits_for(Countdown(), Broken()))

    def cautious():
        try:
            yield handle
        except OSError:
            return "seen"

    assert driver.run(cautious()) == "seen"
    driver.poll()


def test_handle_says_what_it_waits_for(driver):
    def sends_letters():
        yield Signal("the postman")

    handle = driver.start(sends_letters())
    wait_until(lambda: "postman" in str(handle))
    assert str(handle) == "background schedule sends_letters, which waits for the postman"


def test_a_failure_is_seen_before_the_other_schedules_have_moved():
    """By the trainer, while the thread is still busy with the next schedule: it is not raised again after that."""
    driver = MpiDriver(progress_mode="thread")
    moving, seen = threading.Event(), threading.Event()

    class Slow(Countdown):
        def Test(self):
            if threading.current_thread() is not threading.main_thread() and handle.ended:
                moving.set()
                seen.wait(10)
            return super().Test()

    handle = driver.start(waits_for(Countdown(3), Broken()))
    driver.start(waits_for(Slow(10)))
    assert moving.wait(10)
    with pytest.raises(OSError):
        handle.Test()
    seen.set()
    wait_until(lambda: not driver.background)
    driver.poll()
    driver.close()


def test_a_forked_process_has_no_schedules():
    """Nor a thread that it would wait for at its end, whatever that thread held when it was forked."""
    driver = MpiDriver(progress_mode="thread")
    held = engine.ENGINE._changed
    driver.start(waits_for(Signal("never")))
    with held:
        child = os.fork()
        if child == 0:
            fine = not engine.ENGINE.handles
            engine.ENGINE._end_thread()
            os._exit(0 if fine else 1)
    ended = []
    wait_until(lambda: ended or ended.extend(pair for pair in [os.waitpid(child, os.WNOHANG)] if pair[0]))
    assert os.waitstatus_to_exitcode(ended[0][1]) == 0
    driver.close()


# ---- who moves what


def test_a_thread_moves_messages_whatever_the_trainer_does():
    driver = MpiDriver(progress_mode="thread")
    try:
        names = []

        def notes_its_thread():
            yield Countdown()
            names.append(threading.current_thread().name)

        driver.start(notes_its_thread())
        wait_until(lambda: names)
        assert names == ["grsgd-progress"]
    finally:
        driver.close()


@pytest.mark.parametrize("in_background", [True, False])
def test_who_waits_for_the_thread_sleeps_until_something_has_moved(in_background, monkeypatch):
    """It looks when something has moved, and after `BACKGROUND_SECONDS`: two looks each."""
    driver, looks, ended, pauses = MpiDriver(progress_mode="thread", timeout=20.0), [], [], []
    driver.quota = lambda: GroupQuota(0.1, 0.1)
    pause = engine.ENGINE.pause
    monkeypatch.setattr(engine.ENGINE, "pause", lambda moves: pauses.append(pause(moves)) or pauses[-1])

    def background():
        yield Delay(0.1)
        ended.append(True)
        yield Delay(10.0)

    driver.look_at_quota(time.perf_counter())
    begin = time.perf_counter()
    driver.start(background())
    driver.run(waits_for(Until(lambda: looks.append(None) or bool(ended), "the other", in_background)))
    seconds = time.perf_counter() - begin
    driver.close()
    assert 0.1 <= seconds and any(pauses) == in_background
    if in_background:
        assert len(looks) <= 28 * max(seconds / 0.1, 1.0)


@pytest.mark.parametrize("what", ["handle", "condition"])
def test_who_waits_for_the_thread_goes_on_as_soon_as_that_has_moved(what, monkeypatch):
    monkeypatch.setattr(engine, "BACKGROUND_SECONDS", 15.0)
    driver, ended = MpiDriver(progress_mode="thread", timeout=20.0), []

    def background():
        yield Delay(0.05)
        ended.append(True)

    handle = driver.start(background())
    begin = time.perf_counter()
    driver.run(waits_for(handle if what == "handle" else Until(lambda: bool(ended), "the other", in_background=True)))
    assert time.perf_counter() - begin < 10.0
    driver.close()


def test_inline_the_trainer_moves_schedules_when_it_polls():
    driver = MpiDriver(progress_mode="inline", thread_allowed=False)
    signal = Signal("go")
    handle = driver.start(waits_for(signal, value=1))
    signal.set()
    assert handle.value is None
    driver.poll()
    assert handle.value == 1
    driver.close()


def test_a_thread_stands_in_for_a_trainer_that_does_not_poll(inline):
    """As in a long forward pass, or in a blocking call of the user's."""
    threads = []

    class Noted(Countdown):
        def Test(self):
            threads.append(threading.current_thread().name)
            return super().Test()

    handle = inline.start(waits_for(Noted(20), value=1))
    wait_until(lambda: handle.value == 1)
    assert set(threads[1:]) == {"grsgd-progress"}
    inline.close()


def test_the_thread_sleeps_while_the_trainer_polls(inline, monkeypatch):
    monkeypatch.setattr(engine, "TAKEOVER_SECONDS", 10.0)
    threads = set()

    class Noted:
        def Test(self):
            threads.add(threading.current_thread().name)

    inline.start(waits_for(Noted()))
    inline.poll()
    time.sleep(0.05)
    inline.poll()
    assert threads == {threading.main_thread().name}
    monkeypatch.setattr(engine, "TAKEOVER_SECONDS", 0.0)
    inline.close()


def test_a_trainer_that_has_paused_is_not_stood_in_for_at_once(inline, monkeypatch):
    """What was polled last before there was anything to poll says nothing of the trainer."""
    monkeypatch.setattr(engine, "TAKEOVER_SECONDS", 1e6)
    engine.ENGINE._polled = -1e9
    inline.start(waits_for(Signal("never")))
    first = engine.ENGINE._polled
    assert first > 0
    inline.start(waits_for(Signal("never either")))
    assert engine.ENGINE._polled == first
    monkeypatch.setattr(engine, "TAKEOVER_SECONDS", 0.0)
    inline.close()


def test_pauses_are_measured_from_what_has_moved_last(driver, monkeypatch):
    begin, pauses = time.perf_counter(), []
    monkeypatch.setattr(module, "back_off", lambda waited, *_: pauses.append(waited))
    driver.run(waits_for(Countdown(50)))
    assert pauses and all(0 <= pause <= time.perf_counter() - begin for pause in pauses)


def test_a_thread_beside_a_computation_sleeps(monkeypatch):
    """While a thread of its own gives way at first, as a rank that waits does."""
    paused = {"thread": [], "inline": []}
    monkeypatch.setattr(engine, "back_off", lambda *_: paused[mode].append(threading.current_thread().name))
    for mode, pauses in paused.items():
        driver = MpiDriver(progress_mode=mode)
        countdown = Countdown(10)
        driver.start(waits_for(countdown))
        wait_until(lambda countdown=countdown: countdown.left <= 0)
        driver.close()
        assert bool(pauses) == (mode == "thread")


def test_who_waits_gives_way_at_first_and_sleeps_then(monkeypatch):
    done = []
    monkeypatch.setattr(os, "sched_yield", lambda: done.append("gives way"))
    monkeypatch.setattr(time, "sleep", done.append)
    for waited in (0.0, 0.9e-3, 1e-3, 8e-3, 1.0):
        engine.back_off(waited)
    assert done == ["gives way", "gives way", 1e-3 / 16, 8e-3 / 16, engine.SLEEP_SECONDS]


@pytest.mark.parametrize(
    ("cores", "ranks", "spin", "share"),
    [
        (None, 4, engine.SPIN_SECONDS, engine.SLEEP_SHARE),
        (4.0, 4, engine.SPIN_SECONDS, engine.SLEEP_SHARE),
        (2.0, 4, 0.0, 1 / 4),
        (0.25, 1, 0.0, 1 / 2),
        (0.125, 1, 0.0, 1.0),
        (0.01, 1, 0.0, 1.0),
    ],
)
def test_who_has_less_than_a_core_sleeps_at_once(cores, ranks, spin, share, false_time, monkeypatch):
    """From when the quota is seen, a millisecond after a wait has begun; the longer, the less it has."""
    pauses = []
    monkeypatch.setattr(module, "cpu_quota", lambda: cores and GroupQuota(cores, 0.1))
    pause = module.back_off
    monkeypatch.setattr(module, "back_off", lambda waited, *how: (pauses.append(how), pause(waited)))
    MpiDriver(ranks_on_cores=ranks).run(waits_for(Countdown(50)))
    assert pauses[0] == (engine.SPIN_SECONDS, engine.SLEEP_SHARE) and pauses[-1] == (spin, share)


@pytest.mark.parametrize(
    ("cores", "period", "expected"),
    [
        (None, 0.1, (engine.THREAD_SPIN_SECONDS, engine.SLEEP_SHARE, engine.SLEEP_SECONDS)),
        (0.25, 0.1, (0.0, 1 / 2, 2e-3)),
        (0.125, 0.1, (0.0, 1.0, 4e-3)),
        (0.125, 0.004, (0.0, 1.0, 2e-3)),
        (0.9, 0.1, (0.0, 1 / 8 / 0.9, engine.SLEEP_SECONDS)),
    ],
)
def test_the_thread_of_who_has_less_than_a_core_sleeps_longer(cores, period, expected, monkeypatch):
    """It asks for the quota itself: a rank that gossips never waits."""
    pauses, back_off = [], engine.back_off
    monkeypatch.setattr(module, "cpu_quota", lambda: cores and GroupQuota(cores, period))
    monkeypatch.setattr(engine, "back_off", lambda waited, *how: (pauses.append(how), back_off(waited, *how)))
    driver = MpiDriver(progress_mode="thread")
    driver.start(waits_for(Signal("never")))
    wait_until(lambda: len(pauses) > 3)
    driver.close()
    assert set(pauses) == {expected}


def test_a_wait_in_one_driver_moves_the_schedules_of_all(driver):
    signal = Signal("set by the other driver's background")

    def sets():
        yield Countdown(5)
        signal.set()

    other = MpiDriver(progress_mode=driver.progress_mode)
    other.start(sets())
    driver.run(waits_for(signal))
    other.close()


def test_where_mpi_allows_one_thread_there_is_no_other():
    driver = MpiDriver(progress_mode="inline", thread_allowed=False)
    driver.start(waits_for(Signal("never")))
    assert not any(thread.name == "grsgd-progress" for thread in threading.enumerate())
    driver.close()


def test_inline_run_lets_the_background_go_on(inline):
    handle = inline.start(waits_for(Countdown(2), value=1))
    inline.run(None)
    assert handle.value == 1


def test_inline_wait_lets_the_background_go_on(inline):
    signal = Signal("set by the background")

    def sets():
        yield Countdown(5)
        signal.set()

    inline.start(sets())
    inline.run(waits_for(signal))


def test_poll_is_not_reentrant(inline):
    """Neither a schedule that tests a handle nor one that polls may drive itself, or another half-way."""
    depth, deepest = 0, 0

    class Nosy:
        tests = 0

        def Test(self):
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            inline.poll()
            for handle in handles:
                handle.Test()
            depth -= 1
            self.tests += 1
            return self.tests > 3

    handles = []
    handles.append(inline.start(waits_for(Signal("never"))))
    handles.append(inline.start(waits_for(Countdown(2), Nosy(), value=1)))
    handles.append(inline.start(waits_for(Countdown(2), Nosy(), value=2)))
    for _ in range(10):
        inline.poll()
    assert [handle.value for handle in handles] == [None, 1, 2]
    assert deepest == 1


def test_poll_does_nothing_where_a_thread_does_it():
    driver = MpiDriver(progress_mode="thread")
    driver.poll()
    assert not any(thread.name == "grsgd-progress" for thread in threading.enumerate())


def test_auto_takes_a_thread_where_there_are_two_cores_a_rank(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 4)
    assert MpiDriver(ranks_on_cores=1).progress_mode == "thread"
    assert MpiDriver(ranks_on_cores=2).progress_mode == "thread"
    assert MpiDriver(ranks_on_cores=3).progress_mode == "inline"


def test_available_cores():
    assert available_cores() >= 1


# ---- the end


def test_close_ends_the_thread():
    driver = MpiDriver(progress_mode="thread")
    driver.start(waits_for(Signal("never")))
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "grsgd-progress")
    assert thread.daemon
    driver.close()
    assert not thread.is_alive()


def test_close_while_a_schedule_ends(monkeypatch):
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    driver = MpiDriver(progress_mode="thread")
    tested, closed = threading.Event(), threading.Event()

    class EndsWithTheDriver:
        def Test(self):
            if threading.current_thread() is threading.main_thread():
                return False  # `start` looks first
            tested.set()
            return closed.wait(10)

    driver.start(waits_for(EndsWithTheDriver()))
    assert tested.wait(10)
    closing = threading.Thread(target=driver.close)
    closing.start()
    wait_until(lambda: not driver.background)
    closed.set()
    closing.join(10)
    assert not any(thread.name == "grsgd-progress" for thread in threading.enumerate())
    assert failures == []


def test_close_without_a_thread(driver):
    driver.close()
    driver.close()


def test_a_closed_driver_abandons_schedules(inline):
    went_on = []

    def schedule():
        yield Countdown(2)
        went_on.append(1)

    inline.start(schedule())
    inline.close()
    inline.poll()
    assert went_on == []


@pytest.mark.parametrize("mode", MODES)
def test_nothing_changes_after_abandon(mode):
    driver = MpiDriver(progress_mode=mode)
    count = 0

    def counts():
        nonlocal count
        while True:
            yield Delay(1e-5)
            count += 1

    driver.start(counts())
    driver.run(waits_for(Until(lambda: count > 0, "a move")))
    driver.abandon()
    before = count
    driver.run(waits_for(Delay(0.05)))
    assert count == before
    assert driver.run(waits_for(driver.start(waits_for(Delay(1e-3))))) is None  # later ones are driven again
    driver.close()


# ---- time-outs, watch, waiting time


def test_timeout_names_the_rank_and_what_it_waited_for(driver):
    driver.timeout = 0.05
    with pytest.raises(WaitTimeout) as caught:
        driver.run(waits_for(Signal("a word from rank 1")))
    assert str(caught.value) == "rank 3 waited 0.05 s for a word from rank 1"


def test_timeout_of_a_background_schedule_names_what_that_waited_for(driver):
    driver.timeout = 0.05

    def gossip():
        yield Signal("a word from rank 1")

    handle = driver.start(gossip())
    with pytest.raises(WaitTimeout) as caught:
        driver.run(waits_for(handle))
    assert str(caught.value) == (
        "rank 3 waited 0.05 s for background schedule gossip, which waits for a word from rank 1"
    )


def test_watch_is_called_while_waiting(driver, false_time):
    calls = []
    driver.watch = lambda: calls.append(1)
    driver.run(waits_for(Delay(8 * PAUSE)))
    assert len(calls) >= 7


def test_watch_is_not_called_where_nothing_waits(driver):
    driver.watch = lambda: pytest.fail("nobody waits")
    driver.run(waits_for(Countdown(1), value=1))


def test_a_schedule_may_end_itself_when_watch_breaks_its_wait(driver):
    def watch():
        raise InterruptedError("rank 2 has stopped")

    def trains():
        try:
            yield Signal("never")
        except InterruptedError as reason:
            return str(reason)

    driver.watch = watch
    assert driver.run(trains()) == "rank 2 has stopped"


def test_watch_breaks_a_wait(driver):
    class Stop(Exception):
        pass

    def watch():
        raise Stop("rank 2 has stopped")

    driver.watch = watch
    with pytest.raises(Stop, match="rank 2 has stopped"):
        driver.run(waits_for(Signal("never")))


def test_wait_seconds(driver, false_time):
    driver.run(waits_for(Countdown(1)))
    assert driver.wait_seconds == 0
    driver.run(waits_for(Delay(0.5), (Delay(0.25), Countdown(engine.LOOKS + 2))))
    assert driver.wait_seconds == 0.5 + PAUSE  # the shorter delay is over by then
    false_time.now += 10  # nobody waits
    driver.run(waits_for(Delay(0.25)))
    assert driver.wait_seconds == 0.75 + PAUSE


class Late:
    """True from the moment on at which somebody calls it for the given number of seconds, all of them one wait."""

    def __init__(self, seconds):
        self.due = time.perf_counter() + seconds

    def Test(self):
        return time.perf_counter() >= self.due


def test_the_whole_of_a_wait_counts(driver, false_time):
    """The last pause between two looks as well, however long that is."""
    driver.run(waits_for(Delay(PAUSE / 8)))
    assert driver.wait_seconds == PAUSE


def test_what_the_background_does_in_a_wait_is_no_waiting():
    def works():
        yield Countdown(2)
        time.sleep(0.1)

    driver = MpiDriver(progress_mode="inline", thread_allowed=False)
    driver.start(works())
    begin = time.perf_counter()
    driver.run(waits_for(Late(0.15)))
    assert driver.wait_seconds < time.perf_counter() - begin - 0.09
    driver.close()


def test_background_waits_are_nobodys(inline):
    inline.start(waits_for(Delay(0.01)))
    time.sleep(0.02)
    inline.poll()
    assert inline.wait_seconds == 0


def test_clock_goes_on(driver):
    assert driver.clock() <= driver.clock()


# ---- pollables


def test_delay(false_time):
    delay = Delay(0.02)
    assert not delay.Test()
    false_time.now += 0.01
    assert not delay.Test()
    false_time.now += 0.02
    assert delay.Test() and delay.Test()
    assert str(delay) == "a delay of 0.02 s"
    assert Delay(0).Test()


def test_signal():
    signal = Signal("news")
    assert not signal.Test()
    signal.set()
    assert signal.Test() and signal.Test()
    signal.clear()
    assert not signal.Test()
    assert str(signal) == "news"


def test_compute_is_done_when_it_is_waited_for(driver, false_time):
    calls = []

    def work():
        calls.append(1)
        false_time.now += 2
        return 42

    compute = Compute(work)
    assert str(compute) == "a computation"
    assert calls == [] and compute.seconds is None
    driver.run(waits_for(compute))
    assert compute.Test() and calls == [1]  # once
    assert compute.value == 42
    assert compute.seconds == 2


def test_compute_raises_what_its_work_raises(driver):
    with pytest.raises(ZeroDivisionError):
        driver.run(waits_for(Compute(lambda: 1 / 0)))


def test_a_computation_takes_at_least_the_processor_time_that_is_asked_for():
    driver, polls = MpiDriver(progress_mode="inline", timeout=20.0, compute_seconds=0.02), []
    driver.poll = lambda: polls.append(None)
    small, large, background = (Compute(lambda: "gradient", amount) for amount in (1.0, 3.0, 0.0))
    begin = time.thread_time()
    driver.run(waits_for(small))
    used = time.thread_time() - begin
    assert small.value == "gradient" and 0.02 <= used <= small.seconds + 1e-3
    assert len(polls) > 10, "the background goes on meanwhile"
    driver.run(waits_for((large, background)))
    assert large.seconds >= 0.06 and background.seconds < 0.06
    driver.close()


@pytest.mark.parametrize("amount", [1.0, 0.0])
def test_stages_of_a_computation_that_is_prolonged(amount):
    """Each when its share of the processor time is over; by the clock alone the work says so itself."""
    driver, called = MpiDriver(progress_mode="inline", timeout=20.0, compute_seconds=0.02), []
    begin = time.thread_time()
    stages = [(share, lambda share=share: called.append((share, time.thread_time() - begin))) for share in (0.5, 1.0)]
    assert driver.calls_stages and not MpiDriver().calls_stages
    driver.run(waits_for(Compute(lambda: None, amount, stages)))
    assert [share for share, _ in called] == [0.5, 1.0]
    assert all(seconds >= 0.02 * share * amount for share, seconds in called) and (called[0][1] < 0.02 or not amount)
    driver.close()
