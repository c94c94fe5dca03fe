"""The parts of a rank that is ready to train."""

from collections.abc import Callable
from typing import NamedTuple

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import Config
from grsgd.job.progress_line import ProgressLine
from grsgd.job.rescue import Rescue
from grsgd.job.silence import Silence
from grsgd.training.trainer import Trainer


class Survival(NamedTuple):
    """The further parts of a rank whose run goes on without processes that die.

    membership: which process holds which rank. driver: of what goes on beside the training. states: a communicator of
    all processes, for `Succession`. world: an mpi4py communicator of all processes, for the end. make_trainer: makes
    that of the rank that this process holds. silence: ends silent processes, if they are not to be waited for. config:
    of the run.
    """

    membership: Membership
    driver: MpiDriver
    states: Communicator
    world: object
    make_trainer: Callable[[], Trainer]
    silence: Silence | None
    config: Config


class Prepared(NamedTuple):
    """One rank, ready to train."""

    mpi: object
    driver: MpiDriver
    stop_signal: StopSignal
    trainer: Trainer
    line: ProgressLine
    rescue: Rescue
    evaluation: Communicator
    survival: Survival | None = None
