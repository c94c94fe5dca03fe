"""Calls of checkpoints among processes that die, in simulated time, with trainers and files that are doubles."""

from types import SimpleNamespace

import pytest

from grsgd.comm.communicator import Communicator
from grsgd.comm.stop_signal import Stopped
from grsgd.training.checkpoints import Every
from grsgd.training.loose_checkpoints import LooseCheckpoints
from tests.support.members import Members


class Writer:
    """Double of a `CheckpointWriter`, which notes the samples of the checkpoints whose files it has begun."""

    def __init__(self, folder):
        self.folder, self.begun, self.is_writing = folder, [], False

    def attach(self, trainer):
        pass

    def begin(self, header, curve, members, before):
        self.begun.append(header.samples)

    def written(self):
        while self.is_writing:
            yield


def stop(reason: str):
    raise Stopped(reason)


class Job(Members):
    """Three ranks and a spare, each with checkpoints that are due after every step."""

    def __init__(self, folder):
        super().__init__(3, 1)
        self.kept: dict[int, LooseCheckpoints] = {}
        self.folder = folder
        for process in range(3):
            self.train(process)

    def train(self, process: int):
        membership = self.members[process]
        kept = LooseCheckpoints(Writer(self.folder), Every(steps=1), Communicator(self.ends[process]), membership)
        recovery = SimpleNamespace(position=0)
        kept.attach(SimpleNamespace(recovery=recovery, reached=0, stop_signal=SimpleNamespace(stop=stop)))
        self.kept[process] = kept

    def step(self, process: int, samples: int):
        """Let a process take a step, after which it knows of ``samples`` samples of all ranks."""
        kept = self.kept[process]
        kept.trainer.recovery.position += 1
        kept.trainer.reached = samples
        self.hear()

    def hear(self):
        """Let all living processes hear each other, and begin their next steps until they wait."""
        for _ in range(4):
            for member in self.living():
                if member.process in self.kept:
                    list(self.kept[member.process].before_step(0))
            self.settle()

    def begun(self, *processes: int) -> list[list[int]]:
        return [self.kept[process].writer.begun for process in processes]


@pytest.mark.parametrize("samples", [96, 100])
def test_a_new_process_that_knows_of_fewer_samples_than_the_last_checkpoint_calls_the_next(samples, tmp_path):
    """The samples since a rank's last report are unknown to the process that takes rank 0, and so is the last call."""
    job = Job(tmp_path)
    job.step(0, 100)
    assert job.begun(0, 1, 2) == [[100]] * 3
    job.fabric.kill(0)
    job.settle()
    job.train(3)
    job.members[3].begin()
    job.settle()
    job.step(3, samples)
    assert job.begun(1, 2) == [[100]] * 2
    job.step(3, 130)
    assert job.begun(3, 1, 2) == [[samples, 130], [100, 130], [100, 130]]


def test_a_run_that_ends_without_further_samples_waits_for_the_files_of_the_last_checkpoint(tmp_path):
    job = Job(tmp_path)
    job.kept[1].writer.is_writing = True
    job.kept[0].trainer.reached, job.kept[0].trainer.recovery.position = 100, 1
    list(job.kept[0].before_step(0))
    job.settle()
    job.kept[1].watch()
    job.kept[1]._copy(job.kept[1]._due)
    job.kept[0].asks_for_checkpoint("terminated (SIGTERM)")
    waits, pending = [job.kept[process].before_step(0) for process in (0, 2)], []
    for wait in waits:
        pending.append(next(wait))
        job.settle()
    for _ in range(4):
        job.kept[1].watch()
        job.settle()
        assert not any(each.Test() for each in pending)
    job.kept[1].writer.is_writing = False
    job.kept[1].watch()
    job.settle()
    assert all(each.Test() for each in pending)
    for wait in waits:
        with pytest.raises(Stopped, match="SIGTERM"):
            next(wait)
