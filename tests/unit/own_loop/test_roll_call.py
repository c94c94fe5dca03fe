"""The collective call of each rank: calls that do not match are named, and ranks that wait in vain."""

import gc
import os
import re
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import grsgd
from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.stop_signal import UnevenCalls, UnevenSteps
from grsgd.job import launch
from grsgd.own_loop import distributed_optimizer, ranks, roll_call
from grsgd.own_loop.distribute import distribute
from grsgd.own_loop.roll_call import FINISH, RollCall
from tests.support.own_loop import leaves_nothing
from tests.support.threads import on_threads

pytestmark = pytest.mark.usefixtures("leaves_nothing")
__all__ = ["leaves_nothing"]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(roll_call, "VAIN_SECONDS", 0.1)
    monkeypatch.setattr(roll_call, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(roll_call, "PATIENCE_SECONDS", 0.0)


def calls_of(mpi) -> RollCall:
    return RollCall(Communicator(MpiBackend(mpi.Dup())))


def test_all_are_in_a_call_when_all_have_come(monkeypatch):
    def work(mpi):
        calls = calls_of(mpi)
        for number in range(3):
            if mpi.rank < 2:
                answers = calls.call(f"in call {number}")
            mpi.Barrier()
            if mpi.rank < 2:
                assert not answers.Test() and answers.missing == {2}
            mpi.Barrier()
            if mpi.rank == 2:
                answers = calls.call(f"in call {number}")
                assert answers.Test()
            mpi.Barrier()
            assert answers.Test() and answers.Test()

    on_threads(monkeypatch, 3, work)


def test_calls_that_do_not_match(monkeypatch):
    def work(mpi):
        calls = calls_of(mpi)
        answers = calls.call("in rest()" if mpi.rank == 1 else FINISH)
        mpi.Barrier()
        with pytest.raises(UnevenCalls) as caught:
            answers.Test()
        return str(caught.value)

    said = on_threads(monkeypatch, 3, work)
    assert said[0].startswith("rank 0 is in finish(), rank 1 in rest(): all ranks must make these calls")
    assert said[1].startswith("rank 1 is in rest(), rank 0 in finish()")


@pytest.mark.parametrize("call, error", [(FINISH, UnevenSteps), ("in averaged_model()", UnevenCalls)])
def test_a_step_that_another_rank_will_not_take(call, error, monkeypatch):
    def work(mpi):
        calls = calls_of(mpi)
        calls.points = 5
        if mpi.rank == 1:
            calls.call(call, 5)
        mpi.Barrier()
        if mpi.rank == 0:
            calls.watch(0, "dpsgd")  # outside of steps
            for _ in range(2):
                calls.watch(5, "dpsgd")  # the other one may have taken this one
                time.sleep(0.12)
            calls.points = 6
            calls.watch(6, "dpsgd")  # what it has sent may arrive
            time.sleep(0.12)
            with pytest.raises(error) as caught:
                calls.watch(6, "dpsgd")
            return str(caught.value)

    said = on_threads(monkeypatch, 2, work)[0]
    if error is UnevenSteps:
        words = "rank 1 finished after 5 steps, rank 0 is in step 6: dpsgd needs the same number of steps on all ranks"
    else:
        words = "rank 1 is in averaged_model() after 5 steps, rank 0 in step 6: all ranks must make these calls"
    assert said.startswith(words)


def test_whoever_takes_steps_without_waiting_says_once_that_another_waits(monkeypatch, capfd):
    def work(mpi):
        calls = calls_of(mpi)
        if mpi.rank == 1:
            calls.call("in averaged_model()", 5)
        mpi.Barrier()
        if mpi.rank == 0:
            for moment, steps in enumerate((4, 5, 6, 7, 8)):
                calls.look(steps, moment + 1.0)

    on_threads(monkeypatch, 2, work)
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("grsgd: rank 1 waits in averaged_model() after 5 steps, rank 0 is in step 6: all ranks must")


def test_one_rank_alone_makes_no_messages(monkeypatch):
    class Nobody:
        rank, size = 0, 1

        def Get_rank(self):
            return 0

        def Get_size(self):
            return 1

    calls = roll_call.roll_call(Nobody(), "in local_rank()", 1.0)
    assert calls.call(FINISH).Test()
    calls.watch(3, "dpsgd")
    calls.look(3, 5.0)


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()


ALONE = {
    "averaged_model()": lambda optimizer: optimizer.averaged_model(),
    "averaged_state_dict()": lambda optimizer: optimizer.averaged_state_dict(),
    "rest()": lambda optimizer: optimizer.rest(),
    "close()": lambda optimizer: optimizer.close(),
    "recording()": lambda optimizer: grsgd.recording("never.h5", optimizer).__enter__(),
}


@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd", "grsgd"])
@pytest.mark.parametrize("name", ALONE)
def test_what_rank_0_calls_alone_is_named(name, algorithm, monkeypatch):
    if name == "rest()" and algorithm != "grsgd":
        pytest.skip("does nothing there")

    def work(mpi):
        model = nn.Linear(4, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, sgd, algorithm, mpi, timeout=1.5, progress_mode="inline")
        train(model, optimizer)
        try:
            if mpi.rank == 0:
                ALONE[name](optimizer)
            if algorithm != "dpsgd":
                train(model, optimizer)
            optimizer.finish()
        except (UnevenCalls, WaitTimeout) as error:
            return str(error)
        finally:
            optimizer.driver.close()

    said = on_threads(monkeypatch, 2, work)
    assert any(re.search(rf"rank 0 (is )?in {re.escape(name)}", text) and "all ranks must" in text for text in said)
    assert algorithm != "ring_allreduce" or "distribute(timeout=...) is the limit" in said[0]  # the job goes on here


@pytest.mark.parametrize("call", ["finish", "averaged_model", "close"])
def test_the_same_call_of_different_optimizers_does_not_match(call, monkeypatch):
    def work(mpi):
        models = nn.Linear(4, 2), nn.Linear(4, 2)
        optimizers = [
            distribute(m, torch.optim.SGD(m.parameters(), lr=0.1), "dpsgd", mpi, timeout=1.5, progress_mode="inline")
            for m in models
        ]
        with pytest.raises(UnevenCalls) as caught:
            getattr(optimizers[mpi.rank], call)()
        for optimizer in optimizers:
            optimizer.driver.close()
        return str(caught.value)

    said = on_threads(monkeypatch, 2, work)[0]
    words = f"rank 0 is in {call}(), rank 1 in {call}() of the optimizer of distribute() call 2: all ranks must"
    assert said.startswith(words)


@pytest.mark.parametrize("place", ["between two steps", "after the forward pass", "on some ranks in a step"])
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd", "grsgd", "lasgd"])
def test_a_trial_is_dropped(algorithm, place, monkeypatch):
    """Where an exception ended it on all ranks; the next one begins as if there had been none."""

    def work(mpi):
        def begin():
            model = nn.Linear(4, 2)
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            return model, distribute(model, sgd, algorithm, mpi, timeout=10.0, progress_mode="inline")

        model, optimizer = begin()
        train(model, optimizer)
        if place == "after the forward pass" or (place == "on some ranks in a step" and mpi.rank == 1):
            model(torch.ones(3, 4))
        optimizer.close()
        optimizer.close()
        assert optimizer.finished and optimizer not in distributed_optimizer.unfinished
        trained = [p.detach().clone() for p in model.parameters()]
        left = weakref.ref(optimizer.replica)
        del optimizer
        model, optimizer = begin()
        train(model, optimizer)
        optimizer.finish()
        return trained, left

    found = on_threads(monkeypatch, 2, work)
    if place == "on some ranks in a step":
        return
    deadline = time.monotonic() + 5
    while any(left() for _, left in found) and time.monotonic() < deadline:  # a thread may still hold an optimizer
        gc.collect()
        time.sleep(0.01)
    assert not any(left() for _, left in found)


def begin(mpi, algorithm):
    model = nn.Linear(4, 2)
    return distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), algorithm, mpi, timeout=2.0)


class Left(Exception):
    """The process has ended."""


def leave(code):
    raise Left(f"exit code {code}")


FIRST = {
    "another algorithm": (lambda mpi: begin(mpi, "grsgd"), "in distribute(model, optimizer, 'grsgd')"),
    "local_rank()": (lambda mpi: ranks.local_rank(), "in local_rank()"),
    "the end": (lambda mpi: roll_call.end_of_script(mpi, os.getpid()), "at the end of the script"),
}


@pytest.mark.parametrize("what", FIRST)
def test_the_first_calls_of_a_script_that_do_not_match(what, monkeypatch):
    monkeypatch.setattr(roll_call, "LEAVING_SECONDS", 0.0)
    monkeypatch.setattr(roll_call.os, "_exit", leave)
    call, words = FIRST[what]

    def work(mpi):
        if mpi.rank:
            monkeypatch.setattr(ranks, "world", lambda: mpi)
        with pytest.raises((UnevenCalls, Left)) as caught:
            call(mpi) if mpi.rank else begin(mpi, "dpsgd")
        return str(caught.value)

    said = on_threads(monkeypatch, 2, work)
    assert said[0].startswith(f"rank 0 is in distribute(model, optimizer, 'dpsgd'), rank 1 {words}: all ranks must")
    assert what != "the end" or said[1] == "exit code 1"


def test_all_come_to_the_end_of_the_script(monkeypatch):
    monkeypatch.setattr(roll_call.os, "_exit", leave)

    def work(mpi):
        if mpi.rank == 0:
            roll_call.end_of_script(mpi, os.getpid() + 1)  # a forked process is no rank, and meets no other
        roll_call.end_of_script(mpi, os.getpid())

    on_threads(monkeypatch, 3, work)


@pytest.mark.parametrize("more_on", [0, 1])
def test_the_end_of_a_script_is_the_last_call_whatever_came_before(more_on, monkeypatch):
    def work(mpi):
        calls = calls_of(mpi)
        if mpi.rank == more_on:  # which the script has caught the error of
            calls.call("in averaged_model()")
        answers = calls.call(roll_call.END_OF_SCRIPT)
        mpi.Barrier()
        return answers.Test()

    assert on_threads(monkeypatch, 2, work) == [True, True]


def test_from_the_first_question_on_an_error_ends_the_job(monkeypatch):
    mpi, hooked, registered = SimpleNamespace(rank=1, size=2), [], []
    monkeypatch.setattr(launch, "world", lambda: mpi)
    monkeypatch.setattr(launch, "abort_on_error", hooked.append)
    monkeypatch.setattr(ranks.atexit, "register", lambda *given: registered.append(given))
    ranks.guard.cache_clear()
    try:
        assert ranks.rank() == 1 and not ranks.is_main() and ranks.size() == 2
    finally:
        ranks.guard.cache_clear()
    assert hooked == [mpi] and (ranks.SCRIPT_END.come, roll_call.end_of_script, mpi, os.getpid()) in registered


def begin_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()


IN_A_STEP = ALONE | {"finish()": lambda optimizer: optimizer.finish()}
IN_A_STEP.pop("rest()")  # which does nothing where no message is under way between steps


@pytest.mark.parametrize("options", [{}, {"buckets": 2}])
@pytest.mark.parametrize("algorithm", ["ring_allreduce", "dpsgd"])
@pytest.mark.parametrize("name", IN_A_STEP)
def test_what_a_rank_calls_alone_after_its_backward_pass_is_named(name, algorithm, options, monkeypatch):
    """Both ranks have begun the step; one of them will not end it."""
    if options and algorithm != "ring_allreduce":
        pytest.skip("sends no gradients")

    def work(mpi):
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, sgd, algorithm, mpi, timeout=1.5, progress_mode="inline", **options)
        train(model, optimizer)
        begin_step(model, optimizer)
        try:
            if mpi.rank == 0:
                IN_A_STEP[name](optimizer)
            for _ in range(3):
                optimizer.step()
                begin_step(model, optimizer)
            raise AssertionError("a step was taken alone")
        except (UnevenCalls, UnevenSteps, WaitTimeout) as error:
            return str(error)
        finally:
            mpi.Barrier()
            optimizer.driver.close()

    said = on_threads(monkeypatch, 2, work)
    begun = re.escape(name) if name != "finish()" else "after 2 steps"
    assert re.search(rf"rank 0 (is in|finished) {begun}", said[1]), said


@pytest.mark.parametrize("options", [{}, {"buckets": 2}])
def test_what_all_ranks_call_after_their_backward_passes_is_no_fault(options, monkeypatch):
    """Although some wait longer for the slowest than a rank waits in vain."""

    def work(mpi):
        model = nn.Linear(4, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = distribute(model, sgd, "ring_allreduce", mpi, timeout=20.0, progress_mode="inline", **options)
        for number in range(6):
            begin_step(model, optimizer)
            if number % 2:
                optimizer.synchronize()
            time.sleep(0.3 * (mpi.rank == number % 3))
            optimizer.averaged_model()
            time.sleep(0.3 * (mpi.rank == (number + 1) % 3))
            optimizer.step()
        optimizer.finish()

    on_threads(monkeypatch, 3, work)
