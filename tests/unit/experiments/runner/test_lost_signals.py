"""A signal whose exception Python drops still ends what an experiment does."""

import signal
import weakref

import pytest

from experiments.runner import lost_signals


class Something:
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_that_is_lost_is_raised_again(monkeypatch):
    monkeypatch.setattr(lost_signals, "_seen", [])
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *lost_signals.ENDING)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        lost_signals.remember()
        lost_signals.raise_again()
        something = Something()
        callback = weakref.ref(something, lambda reference: signal.raise_signal(signal.SIGINT))
        del something
        assert callback() is None, "it has gone on"
        with pytest.raises(KeyboardInterrupt):
            lost_signals.raise_again()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
