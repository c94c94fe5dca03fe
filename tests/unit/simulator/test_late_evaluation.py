"""What a job that was killed has left, and the run file that is made of it: the one the job would have written."""

import os
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

from grsgd import config, load_run
from grsgd.job.handover import Files, Handover, HandoverTask, last_note
from grsgd.job.rescue import save
from grsgd.runs.ending import TERMINATED, end_attributes
from grsgd.simulator import late_evaluation
from grsgd.simulator.late_evaluation import Left
from grsgd.simulator.network import network
from grsgd.simulator.simulation import Simulation
from grsgd.training.description import describe
from grsgd.training.record import RankMeasurements, assemble, marks_of
from grsgd.training.snapshot_file import SnapshotFile

CONFIG = {
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "synthetic", "samples": 120, "shape": [1, 2, 2], "batch_size": 4},
    "train": {"steps": 6, "snapshots": 3},
}
RANKS = 3


class Job:
    """A run on ranks in this process, each of which leaves what it has measured; ``handovers``: one a rank."""

    def __init__(self, algorithm: str, folder, models=(None, None)):
        self.out = folder / "run.h5"
        chosen = config.parse(CONFIG | {"algorithm": {"name": algorithm}})
        self.simulation = Simulation(chosen, RANKS, network(), "constant:0.01")
        trainers = self.simulation.trainers
        files = [trainer.snapshots.share() for trainer in trainers]
        self.simulation.train()
        self.attributes = describe(trainers[0]) | {"hosts": ["here"] * RANKS, "clock": "wall"}
        self.records = [RankMeasurements.of(trainer) for trainer in trainers]
        task = HandoverTask(self.out, self.attributes, models)
        self.handovers = [Handover(file, task) for file in files]
        own = [handover._files[0] for handover in self.handovers]
        for handover in self.handovers:
            handover._files, handover._processes = own, [("here", os.getpid())] * RANKS
        for handover, record in zip(self.handovers, self.records, strict=True):
            handover.note("an earlier note", 1.0, record)
            handover.note(TERMINATED, 2.5, record)

    def expected(self):
        """The run as the job itself would have written it."""
        attributes = self.attributes | end_attributes(TERMINATED) | {"wall_seconds": 2.5}
        marks = marks_of(self.records, TERMINATED)
        qualities = self.simulation.evaluation.of_snapshots(marks, list(range(RANKS)))
        return assemble(self.records, attributes, qualities, qualities[-1])


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def write_of(job: Job, process: int, ranks=range(RANKS)):
    """What the process does that `Handover.start` starts, with these ranks."""
    task = os.memfd_create("task")
    os.write(task, job.handovers[0]._task)
    left = []
    for rank in ranks:
        files = Files(*(os.dup(file) for file in job.handovers[rank]._files[rank]))
        left.append(Left(rank, process, files.snapshots, files.notes))
    late_evaluation.main(task, left)


@pytest.mark.parametrize("algorithm", ["dpsgd", "sgp", "parameter_server", "easgd"])
def test_the_file_is_the_one_of_the_job(algorithm, tmp_path, ended):
    """Weights of push-sum, and a model that lies on a server, among them."""
    job = Job(algorithm, tmp_path, (tmp_path / "model.pt", None))
    write_of(job, ended)
    expected, written = job.expected(), load_run(job.out)
    assert written.attributes["reason"] == TERMINATED and written.attributes["wall_seconds"] == 2.5
    assert len(written.curve["time"]) == 3 and np.isfinite(written.curve["test_accuracy"]).all()
    for name, column in expected.curve.items():
        np.testing.assert_array_equal(written.curve[name], column, err_msg=name)
    for name, column in (expected.ranks | expected.traffic).items():
        np.testing.assert_array_equal((written.ranks | written.traffic)[name], column, err_msg=name)
    assert written.attributes["final_test_accuracy"] == expected.attributes["final_test_accuracy"]
    final = torch.load(tmp_path / "model.pt")
    averaged = job.simulation.trainers[0].replica.model.state_dict()  # that of the last mark is left there
    assert all(torch.equal(final[name], averaged[name]) for name in averaged)


def test_of_a_rank_that_has_died_nothing_is_needed(tmp_path, ended):
    job = Job("dpsgd", tmp_path)
    write_of(job, ended, ranks=[0, 2])
    run = load_run(job.out)
    assert np.isfinite(run.curve["test_accuracy"]).all() and run.ranks["steps"].tolist() == [6, 0, 6]


def test_what_the_job_has_written_stays(tmp_path, ended):
    job = Job("dpsgd", tmp_path)
    whole = job.expected()
    whole.curve["test_accuracy"][:] = 0.125
    save(job.out, whole)
    write_of(job, ended)
    assert (load_run(job.out).curve["test_accuracy"] == 0.125).all()
    whole.attributes |= {"final_test_accuracy": np.nan}
    save(job.out, whole)  # without accuracies, as a job that is killed has left it
    write_of(job, ended)
    assert (load_run(job.out).curve["test_accuracy"] != 0.125).any()


def test_a_later_run_at_the_same_place_stays(tmp_path, ended):
    job = Job("dpsgd", tmp_path)
    later = job.expected()
    later.attributes |= {"started": "2999-01-01T00:00:00+00:00", "final_test_accuracy": np.nan}
    save(job.out, later)
    write_of(job, ended)
    assert load_run(job.out).attributes["started"].startswith("2999")


def test_a_file_that_was_moved_with_its_folder_is_not_made_again(tmp_path, ended, monkeypatch):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    job = Job("dpsgd", tmp_path / "scratch")
    save(job.out, job.expected())
    (tmp_path / "scratch").rename(tmp_path / "results")
    write_of(job, ended)
    assert not (tmp_path / "scratch").exists() and not any((tmp_path / "elsewhere").iterdir())


def test_a_job_that_left_no_note_has_no_file(tmp_path, ended):
    job = Job("dpsgd", tmp_path)
    for handover in job.handovers:
        os.ftruncate(handover._notes, 0)
    write_of(job, ended)
    assert not job.out.exists()


def test_a_note_that_is_not_whole_does_not_count(tmp_path):
    job = Job("dpsgd", tmp_path)
    file = job.handovers[0]._notes
    assert last_note(file).reason == TERMINATED
    os.ftruncate(file, os.fstat(file).st_size - 1)
    assert last_note(file).reason == "an earlier note"


def test_nothing_is_started_for_snapshots_on_another_host(tmp_path):
    job = Job("dpsgd", tmp_path)
    handover = job.handovers[0]
    assert handover.is_possible(0)
    handover._processes[1] = ("elsewhere", 1)
    assert not handover.is_possible(0) and not handover.start(0)
    assert handover.is_possible(0, gone={1})


@pytest.mark.parametrize("memory", [0, 10, 10**6])
def test_a_snapshot_file_keeps_its_descriptor(memory):
    """Also when what it holds moves to disk."""
    file = SnapshotFile(memory)
    number = file.fileno()
    other = os.open(f"/proc/{os.getpid()}/fd/{number}", os.O_RDONLY)
    file.write(b"abcde")
    file.write(b"fghij")
    file.flush()
    assert file.is_on_disk is (memory == 0)
    file.write(b"k")
    file.flush()
    assert file.is_on_disk is (memory < 11) and file.fileno() == number
    reopened = os.open(f"/proc/{os.getpid()}/fd/{number}", os.O_RDONLY)
    assert os.pread(reopened, 99, 0) == b"abcdefghijk"
    assert file.seek(3) == 3 and file.read(4) == b"defg"
    file.seek(0, 2)
    file.write(b"l")
    file.flush()
    file.truncate(11)
    assert file.seek(0, 2) == 11
    assert os.pread(reopened, 99, 0) == b"abcdefghijk"
    for one in (other, reopened):
        os.close(one)
    file.close()
