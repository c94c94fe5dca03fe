"""Data classes for the user's request of a run, and for the objects of a rank that is ready to train."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from grsgd.comm.communicator import Communicator
from grsgd.comm.driver import MpiDriver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.stop_signal import StopSignal
from grsgd.config import Config
from grsgd.job.keeping import Keeping
from grsgd.job.progress_line import ProgressLine
from grsgd.job.rescue import Rescue
from grsgd.job.silence import Silence
from grsgd.job.startup import StartUp
from grsgd.training.saving import ModelFiles
from grsgd.training.trainer import Trainer


class RunRequest(NamedTuple):
    """Request of a training run by the user.

    ``out`` is the path of the run file. ``start_up`` has the seconds of each phase of start-up through which this
    process has gone. ``line`` shows the run's progress. ``models`` are the files in which models are saved. ``keeping``
    has the options of checkpoints. ``spares`` is the number of processes that take the ranks of processes that die.
    ``timeline`` is the path of the timeline file, which shows the ranks' activities over time.
    """

    config: Config
    out: Path
    start_up: StartUp
    line: ProgressLine
    models: ModelFiles
    keeping: Keeping
    spares: int
    timeline: Path | None


class Survival(NamedTuple):
    """Objects that a rank needs only in a run that survives the death of processes.

    ``membership`` records which process holds each rank. ``driver`` runs schedules (generators of communication) in the
    background while the rank trains. ``states`` is a communicator of all processes over which ranks send their states
    to spares (`Succession`). ``world`` is an mpi4py communicator of all processes, which is used at the end of the run.
    ``silence`` kills processes that send no signs of life, if the configuration has ``comm.silent_seconds``.
    """

    config: Config
    membership: Membership
    driver: MpiDriver
    states: Communicator
    world: object
    silence: Silence | None = None


class Prepared(NamedTuple):
    """Objects of one rank that is ready to train. ``make_trainer`` creates the trainer of this process's rank. On a
    spare process, ``make_trainer`` creates the trainer of the rank that the spare has taken."""

    mpi: object
    driver: MpiDriver
    stop_signal: StopSignal
    trainer: Trainer | None
    make_trainer: Callable[[], Trainer]
    line: ProgressLine
    rescue: Rescue
    evaluation: Communicator | None
    survival: Survival | None = None
