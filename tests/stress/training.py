"""A random run as of ``grsgd train``, on all ranks of a job."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import torch

from grsgd.algorithms.context import RankContext
from grsgd.comm.backend import MpiBackend
from grsgd.comm.driver import MpiDriver
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import parse
from grsgd.job.signals import Interruption
from grsgd.runs.ending import STOP_CRITERIA, joint_reason
from grsgd.training.automatic_options import choose_options
from grsgd.training.inputs import build_model, load_data
from grsgd.training.run_evaluation import evaluate
from grsgd.training.snapshots import common_marks
from grsgd.training.trainer import Trainer
from tests.stress.draw import Stop
from tests.stress.messages import Recorded, check_messages, check_traffic

INTERRUPTED = "interrupted by a signal"


@contextmanager
def stopping(trainer, stop: Stop | None):
    """While entered, what is to happen on this rank happens."""
    mine = stop is not None and stop.rank == trainer.comm.rank
    if mine and stop.cause == "nan":

        def poison(progress, loss):
            if trainer.totals.steps == stop.when:
                for group in trainer.algorithm.optimizer.param_groups:
                    group["lr"] = float("nan")

        trainer.on_step = poison
    if not mine or stop.cause == "nan":
        yield
        return
    with Interruption(lambda *_: setattr(trainer.stop_signal, "request", INTERRUPTED)):
        timer = threading.Timer(stop.when, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # no signal after this run


def check_early_end(reason: str, stop: Stop | None, x):
    assert stop is not None, f"ended by {reason}"
    assert reason.startswith("non-finite loss" if stop.cause == "nan" else INTERRUPTED), f"{stop}: ended by {reason}"
    before = x.tobytes()
    time.sleep(0.02)
    assert x.tobytes() == before, "the model has changed after an early end"


def train(world, content: dict, stop: Stop | None):
    """One run on all ranks, with all checks; raises what is wrong.

    Returns None, or after an early end what must be kept: MPI may still write into it.
    """
    config = parse(content)
    config.check_ranks(world.size)
    driver = MpiDriver(world.rank, config.comm.timeout, config.comm.progress_mode)
    comm, uncounted, for_control, evaluation = (Recorded(MpiBackend(world.Dup())) for _ in range(4))
    stop_signal = StopSignal(for_control)
    dataset = load_data(config)
    model = build_model(config, dataset, torch.device("cpu"))
    trial = Recorded(MpiBackend(world.Dup()))
    config, _ = driver.run(choose_options(config, dataset, model, RankContext(trial, trial, driver)))
    check_messages(world, trial, "trial")
    trial.close()
    context = RankContext(comm, uncounted, driver, stop_signal, config.seed, config.data.replication)
    trainer = Trainer(config, dataset, model, context)
    driver.run(trainer.broadcast_initial_model())
    with stopping(trainer, stop):
        stopped = driver.run(trainer.train())
    x = trainer.algorithm.x.array
    reason = joint_reason(world.allgather(stopped))
    early = reason not in STOP_CRITERIA
    if early:
        check_early_end(reason, stop, x)
    final = x.tobytes()
    marks = common_marks(world.allgather(trainer.snapshots.numbers))
    assert marks if early else len(trainer.snapshots) == config.train.snapshots, f"snapshots: {marks}"
    qualities, _ = driver.run(evaluate(trainer, evaluation, marks))
    assert all(0 <= quality.lowest <= quality.highest <= 1 for quality in qualities)
    check_messages(world, evaluation, "evaluation")
    evaluation.close()
    if early:
        driver.close()
        return driver, trainer, for_control
    background = [str(handle) for handle in driver.background if not handle.Test()]
    background = [name for name in background if "schedule watch" not in name]  # a server's clock: it does nothing more
    driver.close()
    assert not background, f"left in the background: {background}"
    check_messages(world, comm, "training")
    check_messages(world, uncounted, "bookkeeping")
    check_messages(world, for_control, "stop signal")
    models = world.allgather(final)
    if stop is None or stop.cause != "nan":  # which may have come with the last step
        finite = np.isfinite(np.frombuffer(final, x.dtype)).all()
        assert finite and models[0] == final, "the models are not finite and equal"
    assert all(part.freed for part in comm.parts), "a communicator of some ranks was not freed"
    check_counts(world, trainer)
    check_traffic(world, comm, trainer.algorithm)
    world.Barrier()
    for one in (comm, uncounted, for_control):
        one.close()
    return None


def check_counts(world, trainer):
    """Steps, samples and rounds are what they must be, and all ranks know it."""
    algorithm, batch_size = trainer.algorithm, trainer.config.data.batch_size
    steps = world.allgather(trainer.totals.steps)
    assert not algorithm.traits.synchronous or len(set(steps)) == 1, f"steps of a synchronous algorithm: {steps}"
    counted = trainer.progress.trained
    if trainer.is_central:  # a worker has last heard of it before the others' last steps
        counted = max(world.allgather(counted))
    assert counted == sum(steps) * batch_size, f"{counted} samples were counted, {sum(steps) * batch_size} trained on"
    if algorithm.name == "lasgd":
        rounds = world.allgather(algorithm.rounds)
        assert len(set(rounds)) == 1, f"rounds: {rounds}"
