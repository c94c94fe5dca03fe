"""Signals that ask a loop for checkpoints: which handlers they have, and until when."""

import multiprocessing
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from grsgd.job.signals import as_exceptions
from grsgd.own_loop.asked_checkpoints import ASKS, AskingSignals
from grsgd.runs.ending import ASKED_TO_END


@pytest.fixture
def asking():
    asked = []
    recovery = SimpleNamespace(asks_for_checkpoint=asked.append)
    signals = AskingSignals(SimpleNamespace(kept=True, recovery=recovery))
    signals.asked = asked
    yield signals
    signals.close()


def handlers():
    return [signal.getsignal(number) for number in ASKS]


def test_signals_ask_until_the_end_of_the_loop(asking):
    before = handlers()
    asking.begin()
    assert asking.is_on
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    assert asking.asked == ["", ASKED_TO_END]
    asking.close()
    assert handlers() == before and not asking.is_on


def test_in_a_recording_the_handlers_are_replaced_as_well(asking):
    with as_exceptions():
        before = handlers()
        asking.begin()
        os.kill(os.getpid(), signal.SIGUSR1)
        asking.close()
        assert asking.asked == [ASKED_TO_END] and handlers() == before


def test_handlers_of_the_script_and_loops_without_checkpoints_stay(asking):
    own = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        before = handlers()
        asking.begin()
        assert handlers() == before and not asking.is_on
    finally:
        signal.signal(signal.SIGUSR2, own)
    asking.loop.kept = None
    asking.begin()
    assert not asking.is_on
    asking.loop.kept = True
    thread = threading.Thread(target=asking.begin)
    thread.start()
    thread.join()
    assert not asking.is_on


def test_processes_forked_in_the_loop_end_as_usual(asking):
    asking.begin()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    process.terminate()
    process.join(20)
    assert process.exitcode == -signal.SIGTERM and asking.asked == []
