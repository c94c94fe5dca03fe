"""What a run is asked to do, and the parts of a rank that is ready to train."""

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
    """A run as it is asked for.

    out: the run file. start_up: of this process, up to here. line: says how far the run is. models: the files that
    models are saved in. keeping: of checkpoints. spares: processes that take the ranks of those that die. timeline: the
    file that says what each rank did when.
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
    """The further parts of a rank whose run goes on without processes that die.

    config: of the run. membership: which process holds which rank. driver: of what goes on beside the training. states:
    a communicator of all processes, for `Succession`. world: an mpi4py communicator of all processes, for the end.
    silence: ends silent processes, if they are not to be waited for.
    """

    config: Config
    membership: Membership
    driver: MpiDriver
    states: Communicator
    world: object
    silence: Silence | None = None


class Prepared(NamedTuple):
    """One rank, ready to train. make_trainer: makes the trainer of the rank that a spare has taken."""

    mpi: object
    driver: MpiDriver
    stop_signal: StopSignal
    trainer: Trainer | None
    make_trainer: Callable[[], Trainer]
    line: ProgressLine
    rescue: Rescue
    evaluation: Communicator | None
    survival: Survival | None = None
