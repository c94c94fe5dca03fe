"""``--timeline`` of real runs: what every rank did when, gathered from all, also of a run that is broken off."""

import json
import os
import signal
import time
from collections import defaultdict

import pytest

from grsgd import load_run
from tests.support.exhaustive import exhaustive_unless
from tests.support.launcher import finish, mpiexec, start

BOTH = [("openmpi", name) for name in ("dpsgd", "grsgd", "gossip", "ring_allreduce")] + [("mpich", "gossip")]
SAYING = """
import os
from pathlib import Path
from grsgd.algorithms.dpsgd import DPSGD

class Saying(DPSGD, name="saying"):
    steps = 0
    def step(self):
        yield from super().step()
        self.steps += 1
        if self.steps == 20:
            (Path(__file__).parent / f"{self.comm.rank}.there").touch()
        if self.steps == 40 and self.comm.rank == 1 and FAILS:
            raise RuntimeError("boom")
"""


@pytest.fixture
def config(tmp_path):
    """A short run on the digits that ship with scikit-learn, no download."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[algorithm]\nname = "dpsgd"\n[model]\nname = "mlp"\nhidden = [32]\n[data]\nname = "digits"\nbatch_size = 16\n'
        "[train]\nsteps = 60\nsnapshots = 2\n"
    )
    return path


def events_of(path) -> list[dict]:
    return json.loads(path.read_text())["traceEvents"]


def by_rank(events, category) -> dict[int, list[dict]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] == category:
            found[event["pid"]].append(event)
    return found


def arguments(config, tmp_path, *more) -> list:
    return ["-m", "grsgd", "train", config, "--out", tmp_path / "run.h5", "--timeline", tmp_path / "run.json", *more]


@pytest.mark.parametrize(("library", "algorithm"), exhaustive_unless(BOTH[1:2], BOTH))
def test_timeline_of_a_run(library, algorithm, config, tmp_path):
    command = arguments(config, tmp_path, "--set", f"algorithm.name={algorithm}")
    code, output = mpiexec(library, 3, command, timeout=90)
    assert code == 0, output
    events, run = events_of(tmp_path / "run.json"), load_run(tmp_path / "run.h5")
    end = 1e6 * run.attributes["wall_seconds"]
    computed, sent, received = (by_rank(events, category) for category in ("compute", "send", "receive"))
    for rank in range(3):
        assert len(computed[rank]) == run.ranks["steps"][rank]
        # The updates count as computing, too, and are between the waits.
        seconds = 1e-6 * sum(event["dur"] for event in computed[rank])
        assert 0 < seconds <= run.ranks["compute_seconds"][rank] + 1e-3
        assert all(0 <= event["ts"] <= event["ts"] + event["dur"] <= 1.1 * end for event in computed[rank])
    counted = run.traffic["messages"].sum()
    assert counted <= sum(map(len, sent.values())) <= 2 * counted + 12  # some are of a header alone
    # What was sent in the end, and not waited for, may be over when nobody looks any more.
    arrows = sum(event["ph"] == "s" for event in events)
    assert 0.9 * counted <= arrows <= sum(map(len, received.values()))
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    assert tails.keys() == heads.keys()
    assert all(heads[number]["ts"] >= tail["ts"] for number, tail in tails.items())  # one clock
    assert all(heads[number]["pid"] != tail["pid"] for number, tail in tails.items())


@pytest.mark.parametrize("fails", [False, True], ids=["interrupted", "failed"])
def test_what_there_is_is_kept_of_a_run_that_is_broken_off(fails, config, tmp_path):
    """In one of three attempts at least: Open MPI's launcher leaves its ranks a fifth of a second."""
    for attempt in range(1 if fails else 3):
        (folder := tmp_path / f"{attempt}").mkdir()
        output = broken_off(fails, config, folder)
        deadline = time.monotonic() + 60  # a process outlives the ranks
        while not all((folder / name).exists() for name in ("run.json", "run.h5")) and time.monotonic() < deadline:
            time.sleep(0.1)
        computed = by_rank(events_of(folder / "run.json"), "compute") if (folder / "run.json").exists() else {}
        if all(len(computed.get(rank, ())) >= 20 for rank in range(3)):
            break
    assert all(len(computed[rank]) >= 20 for rank in range(3)), output
    assert load_run(folder / "run.h5").attributes["ended"] == ("failed" if fails else "interrupted")


def broken_off(fails: bool, config, tmp_path) -> str:
    """Break a run off by an error or by Ctrl-C in the midst of the training; return its output."""
    (tmp_path / "saying.py").write_text(f"FAILS = {fails}\n{SAYING}")
    settings = ["--set", f"algorithm.name={tmp_path}/saying.py:Saying", "--set", "train.steps=1000000"]
    job = start("openmpi", 3, arguments(config, tmp_path, *settings))
    if not fails:
        deadline = time.monotonic() + 90
        while not all((tmp_path / f"{rank}.there").exists() for rank in range(3)):
            assert job.poll() is None and time.monotonic() < deadline, job.communicate()[0]
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGINT)
    code, output = finish(job, 60)
    assert code != 0 and ("RuntimeError: boom" in output) == fails, output
    return output


@pytest.mark.parametrize(("name", "named"), [("missing/x.json", "there is no directory"), ("run.h5", "of --out, too")])
def test_refused_before_training(name, named, config, tmp_path):
    code, output = mpiexec("openmpi", 2, arguments(config, tmp_path, "--timeline", tmp_path / name), timeout=60)
    assert code != 0 and output.count(named) == 1 and "Traceback" not in output, output
    assert not (tmp_path / "run.h5").exists()
