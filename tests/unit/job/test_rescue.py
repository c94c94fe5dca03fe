"""What is saved where when a run ends early, with the reason, and by whom; ranks are threads here."""

import os
import queue
import signal
import threading
from pathlib import Path

import pytest

from grsgd import files, load_run
from grsgd.comm import tags
from grsgd.comm.communicator import LostRank
from grsgd.comm.driver import WaitTimeout
from grsgd.comm.stop_signal import Stopped, StopSignal
from grsgd.errors import RunFileError
from grsgd.job import launch, places, rescue
from grsgd.job.signals import INTERRUPTED, TERMINATED, Interruption, as_exceptions
from grsgd.runs.run_file import check_writable, save_run
from tests.support.runs import fake_run


class Silent:
    """The end of a communicator on which nothing comes; ``lost`` ranks have died."""

    rank, size = 2, 4

    def __init__(self, lost=()):
        self.lost = lost
        self.sent = []

    def Iprobe(self, source, tag):
        return False

    def Isend(self, word, dest, tag):
        self.sent.append((dest, word.tobytes().strip()))


def made(lost=(), out=Path("run.h5")):
    stop_signal = StopSignal(Silent(lost))
    return rescue.Rescue(Silent(lost), stop_signal, [("here", os.getpid())] * 4, out, None, None, {})


@pytest.mark.parametrize(
    "error, lost, reason",
    [
        (RuntimeError("boom\nand more"), (), "RuntimeError: boom and more on rank 2"),
        (KeyError(), (), "KeyError on rank 2"),
        (WaitTimeout("rank 2 waited 5 s for x"), (), "rank 2 waited 5 s for x"),
        (LostRank("receive from rank 1: ..."), (1,), "rank 1 lost: its process has died"),
        (RuntimeError("MPI_ERR_PROC_FAILED: Process Failure"), (0, 1), "ranks 0, 1 lost: their processes have died"),
        (LostRank("the server has lost worker 1"), (), "the server has lost worker 1 (said by rank 2)"),
    ],
)
def test_reasons(error, lost, reason):
    assert made(lost)._reason(error) == reason


def test_a_failure_is_told_to_all_that_live_and_outdoes_other_reasons():
    stop_signal = StopSignal(Silent(lost=(0,)))
    with pytest.raises(Stopped, match="non-finite"):
        stop_signal.stop("non-finite loss")
    stop_signal.comm.sent.clear()
    stop_signal.fail("rank 0 lost")
    assert stop_signal.comm.sent == [(1, b"!rank 0 lost"), (3, b"!rank 0 lost")]
    with pytest.raises(Stopped, match="rank 0 lost"):
        stop_signal.watch_failures()


@pytest.mark.parametrize("tolerant", [False, True])
def test_a_rank_that_has_died_is_noticed_by_all(tolerant):
    stop_signal = StopSignal(Silent(lost=(1,)), tolerant)
    if tolerant:
        stop_signal.watch()
    else:
        with pytest.raises(LostRank, match="rank 1 lost: its process has died"):
            stop_signal.watch()


def test_processes_that_have_ended():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    processes = [("here", os.getpid()), ("here", child), ("elsewhere", child)]
    assert places.ended_ranks(processes, 0) == {1}  # a zombie still
    os.waitpid(child, 0)
    assert places.ended_ranks(processes, 0) == {1}


def test_sigterm_of_a_launcher_after_a_death_is_no_interruption(monkeypatch):
    one, saved = made(), []
    monkeypatch.setattr(rescue.Rescue, "_save", lambda self, reason, *_: saved.append(reason))
    one.interrupted(TERMINATED)
    monkeypatch.setattr(places, "ended_ranks", lambda *_: {1})
    one.interrupted(TERMINATED)
    assert saved == [TERMINATED, "rank 1 lost: its process has died"]
    assert one.stop_signal.request == saved[-1]


@pytest.mark.parametrize("reason, of_this", [("epochs", True), ("epochs", False), (INTERRUPTED, True), (None, True)])
def test_sigterm_of_a_launcher_after_a_run_that_was_saved_as_a_whole_says_nothing(
    reason, of_this, monkeypatch, tmp_path
):
    """To a worker that was left behind; but one of another run of the same name, or of before, is none."""
    out, saved = tmp_path / "run.h5", []
    save_run(out, fake_run(reason="epochs"))
    one = made(out=out)
    one.attributes = fake_run(started="2024-05-01T12:00:00+00:00" if of_this else "another time").attributes
    monkeypatch.setattr(one, "_save", lambda reason, *_: saved.append(reason))
    if reason:
        save_run(out, fake_run(reason=reason))
    one.interrupted(TERMINATED)
    assert saved == ([] if reason == "epochs" and of_this else [TERMINATED])


@pytest.mark.parametrize("has_said", [False, True])
def test_what_ended_a_run_is_said_once(has_said, monkeypatch, tmp_path):
    one, said = made(out=tmp_path / "run.h5"), []
    monkeypatch.setattr(one, "_collect", lambda *_: {2: None, 3: None})
    monkeypatch.setattr(one, "assembled", lambda *_: fake_run(reason=TERMINATED))
    one._speaker, one._has_said = said.append, has_said
    assert one._save(TERMINATED, 0.0, tags.RESCUE_AFTER_SIGNAL, {0, 1})
    assert said == ([] if has_said else [f"{one.out}: stopped early: {TERMINATED}"]) and one.out.exists()


def test_a_signal_that_comes_when_the_job_writes_the_run_itself_saves_nothing_over_it(tmp_path, monkeypatch):
    """It would be without accuracies."""
    one, said = made(out=tmp_path / "run.h5"), []
    monkeypatch.setattr(one, "_collect", lambda *_: {2: None, 3: None})
    monkeypatch.setattr(one, "assembled", lambda *_: fake_run(reason=TERMINATED))
    one._speaker = said.append
    one.supersede()
    assert not one._save(TERMINATED, 0.0, tags.RESCUE_AFTER_SIGNAL, set())
    assert not said and not one.out.exists()


def made_on_hosts(hosts, answers, monkeypatch, tmp_path):
    """Rank 2 of 4, with the attributes of a run file; return it, and a list of the reasons with which it saves."""
    one, reasons = made(out=tmp_path / "run.h5"), []
    one.processes = [(f"{host} pid:[1]", os.getpid()) for host in hosts]
    one.attributes = fake_run().attributes
    monkeypatch.setattr(one, "_collect", lambda *_: dict.fromkeys(answers))

    def assembled(records, attributes):
        reasons.append(attributes["reason"])
        return fake_run(reason=attributes["reason"])

    monkeypatch.setattr(one, "assembled", assembled)
    one._speaker = lambda line: None
    return one, reasons


@pytest.mark.parametrize(
    "hosts, answers, reason",
    [
        ("abba", (1, 2), None),  # rank 1 saves
        ("abba", (2, 3), None),  # rank 0 is busy, for rank 3 of its host has answered
        ("abba", (2,), None),  # rank 1 of this host is busy
        ("aabb", (2, 3), f"{TERMINATED}: no answer from host a"),
        ("acbb", (2, 3), f"{TERMINATED}: no answer from hosts a, c"),
    ],
)
def test_the_lowest_rank_of_the_hosts_that_are_left_saves(hosts, answers, reason, monkeypatch, tmp_path):
    one, reasons = made_on_hosts(hosts, answers, monkeypatch, tmp_path)
    one._save(TERMINATED, 0.0, tags.RESCUE_AFTER_SIGNAL, set())
    assert reasons == [reason] * (reason is not None)
    if reason:
        assert load_run(one.out).attributes["ended"] == "interrupted"


def test_a_rank_does_not_save_over_the_file_of_a_lower_rank(monkeypatch, tmp_path):
    one, reasons = made_on_hosts("aabb", (2, 3), monkeypatch, tmp_path)
    save_run(one.out, fake_run(reason=TERMINATED))
    one._save(TERMINATED, 0.0, tags.RESCUE_AFTER_SIGNAL, set())
    assert not reasons


def test_an_early_end_does_not_replace_a_whole_run(tmp_path):
    out = tmp_path / "run.h5"
    assert rescue.save(out, fake_run(reason=INTERRUPTED)) == out
    assert rescue.save(out, fake_run(reason=TERMINATED)) == out
    assert rescue.save(out, fake_run(reason="epochs")) == out
    assert rescue.save(out, fake_run(reason=INTERRUPTED)) == tmp_path / "run.interrupted.h5"
    assert load_run(out).attributes["reason"] == "epochs"
    assert rescue.save(out, fake_run(reason="steps")) == out
    assert load_run(out).attributes["reason"] == "steps"


def test_of_two_runs_with_one_file_neither_is_lost(tmp_path, monkeypatch):
    """One that was there before is replaced, and so is what another rank has saved of the same run."""
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    out, first, second = tmp_path / "run.h5", fake_run(started="first"), fake_run(started="second")
    save_run(out, fake_run(started="before"))
    check_writable(out)
    for _ in range(2):
        assert rescue.save(out, first) == out
    os.utime(out, (1, 1))  # as if by another process
    assert rescue.save(out, first) == out
    os.utime(out, (2, 2))
    for _ in range(2):
        with pytest.raises(RunFileError, match=r"run.h5: another run has written it .* as .*/run.h5 instead"):
            rescue.save(out, second)
    (place,) = tmp_path.glob("grsgd-*/run.h5")
    assert load_run(out).attributes["started"] == "first" and load_run(place).attributes["started"] == "second"
    assert rescue.save(out, fake_run(started="second", reason=INTERRUPTED)) == tmp_path / "run.interrupted.h5"


def test_a_run_that_cannot_be_saved_is_saved_elsewhere(tmp_path, monkeypatch):
    """Where there is room: in the folder of temporary files, or else in the working directory; always in one place."""
    full = [tmp_path / "run.h5"]

    def save_where_there_is_room(path, run):
        if any(Path(path).is_relative_to(place) for place in full):
            raise RunFileError(f"{path}: No space left on device")
        save_run(path, run)

    monkeypatch.setattr(rescue, "save_run", save_where_there_is_room)
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path / "temporary"))
    for folder in ("temporary", "working"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "working")
    monkeypatch.setattr(files.os.path, "expanduser", lambda path: str(tmp_path / "nothing"))
    for folder in ("temporary", "working"):
        for _ in range(2):
            with pytest.raises(RunFileError, match="left on device; the run was saved as (.*) instead") as error:
                rescue.save(tmp_path / "run.h5", fake_run(reason="epochs"))
        (elsewhere,) = (tmp_path / folder).glob("*/run.h5")
        assert str(elsewhere) in str(error.value) and load_run(elsewhere).attributes["reason"] == "epochs"
        assert launch.explained(error.value)
        full.append(tmp_path / folder)
        elsewhere.unlink()
    full.append("/dev/shm")
    with pytest.raises(RunFileError, match="nor could the run be saved elsewhere: .*/dev/shm/.*: No space left"):
        rescue.save(tmp_path / "run.h5", fake_run(reason="epochs"))
    assert not [*tmp_path.glob("*/*/"), *tmp_path.glob("*/.grsgd*")], "folders that hold nothing are removed"


@pytest.mark.parametrize("number, reason", [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
def test_signals_have_reasons(number, reason):
    said, come = [], threading.Event()
    with Interruption(lambda reason: None) as interruption:
        interruption.on_signal = lambda reason: (said.append(reason), come.set())
        os.kill(os.getpid(), number)
        assert come.wait(20) and said == [reason]
    with pytest.raises(KeyboardInterrupt) as interrupt, as_exceptions():
        os.kill(os.getpid(), number)
        threading.Event().wait(20)
    assert str(interrupt.value) == reason


def test_each_sigusr2_asks_for_a_checkpoint_and_a_later_signal_still_ends_the_run():
    asked, said = threading.Semaphore(0), queue.Queue()
    with Interruption(said.put, asked.release):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR2)
            assert asked.acquire(timeout=20)
        os.kill(os.getpid(), signal.SIGTERM)
        assert said.get(timeout=20) == TERMINATED


def test_without_checkpoints_sigusr2_is_left_to_the_handler_of_the_script():
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda *_: seen.append(True))
    try:
        with Interruption(seen.append):
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [True]
