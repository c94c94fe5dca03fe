"""What is seen of a run while it goes on: the words, the terminal, and whole lines where there is none."""

import fcntl
import math
import os
import struct
import subprocess
import sys
import termios
from types import SimpleNamespace

import pytest

from grsgd import mpi_environment
from grsgd.errors import RunFileError
from grsgd.job import progress_line, progress_text
from grsgd.job.progress_line import ProgressLine
from grsgd.job.progress_text import LinePart, Status, duration, loss_text
from grsgd.job.terminal import Terminal
from grsgd.runs.loggers import log_curve
from tests.support.runs import fake_run

STATUS = Status(0.129, 120, 6000, 1.24, 0.3149, 4900.4, 0.031, 361.0, 1.3249)
WORDS = "12 %, epoch 1.2, loss 0.31, 4,900 samples/s, waiting 3 %, 6 min left"


def text(status, name="", width=math.inf):
    return progress_text.line(progress_text.parts(status), name, width)


def test_all_that_is_known():
    assert text(STATUS) == WORDS
    assert text(STATUS, "dpsgd") == f"dpsgd: {WORDS}"
    simulated = "12 %, epoch 1.2, loss 0.31, 1.32 simulated s, 4,900 samples per simulated s, waiting 3 %, 6 min left"
    assert text(STATUS._replace(is_simulated=True)) == simulated


@pytest.mark.parametrize(
    ("change", "gone"),
    [
        ({"share": None, "left": None}, ["12 %, ", ", 6 min left"]),
        ({"share": 0.0, "left": None}, [", 6 min left"]),
        ({"loss": None}, [", loss 0.31"]),
    ],
)
def test_what_is_not_known_is_left_out(change, gone):
    expected = WORDS
    for part in gone:
        expected = expected.replace(part, "")
    assert text(STATUS._replace(**change)).replace("0 %, e", "12 %, e") == expected


def test_narrow_terminals_get_fewer_words_and_only_whole_ones():
    words = {part.text for part in progress_text.parts(STATUS)}
    shown = [text(STATUS, "dpsgd", width) for width in range(90)]
    for width, line in enumerate(shown):
        assert len(line) <= width
        parts = line.removeprefix("dpsgd: ").split(", ")
        assert not line or words >= set(parts)
    counts = [len(line.split(", ")) if line else 0 for line in shown]
    assert counts == sorted(counts) and set(counts) == set(range(7))
    assert shown[3] == "" and shown[4] == "12 %" and shown[59] == "dpsgd: 12 %, epoch 1.2, loss 0.31, 6 min left"
    assert shown[35] == "dpsgd: 12 %, loss 0.31, 6 min left" and shown[89] == f"dpsgd: {WORDS}"


@pytest.mark.parametrize(
    ("loss", "words"),
    [(0.3149, "0.31"), (12.345, "12.35"), (0.0123, "0.012"), (1e-7, "1e-07"), (123456.0, "1.2e+05"), (0.0, "0")]
    + [(math.nan, "nan"), (math.inf, "inf")],
)
def test_losses(loss, words):
    assert loss_text(loss) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.6, "60 s"), (99.4, "99 s"), (99.6, "2 min"), (3600, "60 min"), (5969, "99 min")]
    + [(6000, "1.7 h"), (172799, "48.0 h"), (200000, "2.3 days")],
)
def test_times(seconds, words):
    assert duration(seconds) == words


# ---- terminals


class Screen:
    """A terminal; a process that sleeps has it as its stderr and stands for the launcher."""

    def __init__(self, columns):
        self.reading, self.file = os.openpty()
        self.resize(columns)
        self.process = subprocess.Popen(["sleep", "60"], stderr=self.file)

    def resize(self, columns):
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def read(self) -> str:
        """What was written since it was last read."""
        os.write(self.file, b"\0")
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(self.reading, 100_000)
        return text[:-1].decode()

    def close(self):
        self.process.kill()
        self.process.wait()
        for file in (self.reading, self.file):
            try:
                os.close(file)
            except OSError:
                pass


@pytest.fixture
def screen(monkeypatch):
    screen = Screen(100)
    monkeypatch.setattr(mpi_environment, "launcher", lambda: screen.process.pid)
    monkeypatch.setattr(Terminal, "is_in_foreground", lambda terminal: True)
    monkeypatch.delenv("TERM", raising=False)
    yield screen
    screen.close()


def test_the_line_is_written_to_the_launchers_terminal(screen):
    terminal = Terminal.find()
    terminal.show("a line")
    terminal.show("a line")
    assert screen.read() == "\r\x1b[Ka line"
    terminal.show("another")
    terminal.clear()
    terminal.clear()
    assert screen.read() == "\r\x1b[Kanother\r\x1b[K"
    terminal.close()
    terminal.close()
    assert screen.read() == ""


def test_a_line_on_a_terminal_that_becomes_narrower(screen):
    terminal = Terminal.find()
    assert terminal.width() == 99
    terminal.show("x" * 99)
    screen.resize(40)
    screen.read()
    terminal.show("y" * 99)
    assert screen.read() == "\r\x1b[2A\x1b[J" + "y" * 39
    screen.resize(0)
    assert terminal.width() == 79


def test_a_terminal_that_takes_nothing_or_is_gone_is_not_waited_for(screen):
    terminal = Terminal.find()
    for number in range(5000):
        terminal.show(f"{number}".ljust(90, "."))
    os.close(screen.reading)
    os.close(screen.file)
    terminal.show("gone")
    terminal.close()


def test_writing_from_the_background_stops_nothing(screen):
    """The process group of a rank of Open MPI never has the terminal."""
    code = f"""
import os, signal, sys, termios
os.setsid()
file = os.open({os.ttyname(screen.file)!r}, os.O_RDWR)  # the terminal of the session now
attributes = termios.tcgetattr(file)
attributes[3] |= termios.TOSTOP
termios.tcsetattr(file, termios.TCSANOW, attributes)
child = os.fork()
if not child:
    os.setpgid(0, 0)
    from grsgd.job.terminal import Terminal
    terminal = Terminal(os.open({os.ttyname(screen.file)!r}, os.O_WRONLY | os.O_NONBLOCK), os.getpid())
    terminal.show("from the background")
    assert terminal.stops_background() and not terminal.is_in_foreground()
    assert Terminal(file, os.getppid()).is_in_foreground()
    reading, writing = os.pipe()
    if not os.fork():
        os.setsid()  # as `grsgd run` does with its launcher
        os.write(writing, b"1" if not Terminal(file, os.getpid()).is_in_foreground() else b"0")
        os._exit(0)
    assert os.read(reading, 1) == b"1"
    os._exit(0)
pid, status = os.waitpid(child, os.WUNTRACED)
if os.WIFSTOPPED(status):
    os.kill(child, signal.SIGKILL)
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "from the background" in screen.read()


def test_no_terminal(monkeypatch, screen):
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal.find() is None
    monkeypatch.delenv("TERM")
    monkeypatch.setattr(mpi_environment, "launcher", lambda: None)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    assert Terminal.find() is None
    with subprocess.Popen(["sleep", "60"], stderr=subprocess.DEVNULL) as process:
        monkeypatch.setattr(mpi_environment, "launcher", lambda: process.pid)
        assert Terminal.find() is None
        process.kill()


# ---- when it is shown


class Run:
    """A run of 1000 samples, or of ``seconds``; its trainer, and a clock that a test sets."""

    def __init__(self, monkeypatch, seconds=None):
        self.now, self.samples, self.seconds = 100.0, 0, seconds
        monkeypatch.setattr(progress_line.time, "perf_counter", lambda: self.now)
        self.trainer = SimpleNamespace(totals=SimpleNamespace(steps=3, wait_seconds=1.0), data=SimpleNamespace())
        self.trainer.data.train = range(100)
        self.trainer.stop_signal = SimpleNamespace(request=None)

    def elapsed(self):
        return self.now - 100

    def share(self):
        return self.samples / 1000 if self.seconds is None else self.elapsed() / self.seconds

    def at(self, line, seconds, samples=0, loss=0.5):
        self.now, self.samples = 100 + seconds, samples
        line.update(self, loss)


def test_a_line_is_replaced_on_the_terminal_five_times_a_second(monkeypatch, screen):
    run = Run(monkeypatch)
    with ProgressLine() as line:
        line.doing("starting 2 ranks")
        assert screen.read() == "\r\x1b[Kgrsgd: starting 2 ranks"
        line.name = "dpsgd"
        line.training(run.trainer)
        for step in range(1, 65):
            run.at(line, step / 64, step, loss=2.0 * (step % 2))
        written = screen.read().split("\r\x1b[K")[1:]
        assert len(written) == 4
        assert written[-1] == "dpsgd: 5 %, epoch 0.5, loss 0.92, 64 samples/s, waiting 100 %, 15 s left"
        run.at(line, 2.0, 500, loss=None)
        assert screen.read().endswith("dpsgd: 50 %, epoch 5.0, loss 1.00, 250 samples/s, waiting 50 %, 2 s left")
        line.doing("evaluating 20 snapshots")
        line.counted(1)
        run.now += 1
        line.counted(2)
        assert screen.read().split("\r\x1b[K")[1:] == [
            "dpsgd: evaluating 20 snapshots",
            "dpsgd: evaluating 20 snapshots, 2 done",
        ]
    assert screen.read() == "\r\x1b[K"
    run.at(line, 50, 600)
    assert screen.read() == ""


@pytest.fixture
def no_terminal(monkeypatch):
    monkeypatch.setattr(Terminal, "find", lambda: None)


def test_whole_lines_without_a_terminal(monkeypatch, capsys, no_terminal):
    run = Run(monkeypatch)
    line = ProgressLine("dpsgd")
    line.training(run.trainer)
    run.at(line, 0.5, 90)  # too early for a line
    run.at(line, 1.5, 91, loss=0.25)
    run.at(line, 20, 99)  # not before the next twentieth
    run.at(line, 25, 100)
    run.at(line, 54, 101)
    run.at(line, 56, 102)  # half a minute later
    run.at(line, 56.9, 400)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["9 %", "10 %", "10 %"]
    assert lines[0] == "9 %, epoch 0.9, loss 0.38, 61 samples/s, waiting 67 %, 15 s left"
    run.seconds = 200.0
    run.at(line, 100, 500)
    assert capsys.readouterr().err == "50 %, epoch 5.0, loss 0.50, 5 samples/s, waiting 1 %, 2 min left\n"
    run.at(line, 190, 10**6, loss=math.nan)
    assert "loss nan" in capsys.readouterr().err


def test_what_takes_long_is_told_without_a_terminal(monkeypatch, capsys, no_terminal):
    monkeypatch.setattr(progress_line, "LONG_SECONDS", 600.0)
    with ProgressLine() as line:
        line.doing("starting 2 ranks")
        monkeypatch.setattr(progress_line, "LONG_SECONDS", 0.05)
        line.doing("evaluating 3 snapshots")
        monkeypatch.setattr(progress_line, "LONG_SECONDS", 600.0)
        for _ in range(200):
            if line._timer.finished.wait(0.1):
                break
        line._timer.join()
        line.counted(1)
        line.doing("saving")
        line.doing("starting", only_live=True)
        assert line._timer is None
    assert capsys.readouterr().err == "evaluating 3 snapshots\n"


def test_nothing_on_other_ranks(monkeypatch, capsys, no_terminal):
    run = Run(monkeypatch)
    line = ProgressLine(is_shown=False)
    line.doing("starting")
    line.training(run.trainer)
    run.at(line, 100, 900)
    line.counted(1)
    assert capsys.readouterr().err == "" and line._timer is None


def test_nothing_more_after_a_signal(monkeypatch, capsys, no_terminal):
    run, line = Run(monkeypatch), ProgressLine()
    line.training(run.trainer)
    run.trainer.stop_signal.request = "interrupted (Ctrl-C)"
    run.at(line, 10, 500)
    assert capsys.readouterr().err == ""


def test_rows_for_files(monkeypatch, capsys, no_terminal):
    """One for each twentieth of the run, and no more for a logger that fails."""
    run, line, rows = Run(monkeypatch), ProgressLine(), []

    def fail(step, values):
        raise RunFileError("course.csv: No space left on device")

    line.loggers = [
        SimpleNamespace(log=fail, close=lambda: None),
        SimpleNamespace(log=lambda *row: rows.append(row), close=lambda: rows.append("closed")),
    ]
    with line:
        line.training(run.trainer)
        for sample in range(10, 1000, 10):
            run.at(line, sample / 1000, sample, loss=sample / 10)
    assert len(rows) == 20 and rows[-1] == "closed" and len(line.loggers) == 1
    seconds = pytest.approx(0.05)
    numbers = {"seconds": seconds, "samples": 50, "epoch": 0.5, "loss": 3.0, "samples_per_second": pytest.approx(1000)}
    assert rows[0] == (4, numbers | {"waiting": 1.0})
    warning = "warning: course.csv: No space left on device: nothing more is written there\n"
    assert capsys.readouterr().err == warning


def test_the_course_of_a_run_ends_with_its_curve():
    run, rows = fake_run(snapshots=3), []
    run.curve["test_accuracy_min"][1] = math.nan
    log_curve(run, SimpleNamespace(log=lambda *row: rows.append(row)))
    assert [step for step, _ in rows] == [0, 5, 10]
    assert rows[1][1] == {
        "seconds": 10.0,
        "samples": 1000,
        "epoch": 0.5,
        "train_loss": 1.0,
        "test_accuracy": 0.2,
        "test_accuracy_max": 0.25,
        "consensus_distance": 0.25,
    }


def test_a_job_in_the_background_prints_whole_lines(monkeypatch, screen, capsys):
    """Or nothing, where the terminal would stop it."""
    run, line = Run(monkeypatch), ProgressLine()
    line.training(run.trainer)
    monkeypatch.setattr(Terminal, "is_in_foreground", lambda terminal: False)
    run.at(line, 10, 500)
    assert screen.read() == "" and capsys.readouterr().err.startswith("50 %, ")
    monkeypatch.setattr(Terminal, "stops_background", lambda terminal: True)
    run.at(line, 20, 800)
    assert screen.read() == "" and capsys.readouterr().err == ""


def test_simulated_time_is_called_so(monkeypatch, capsys, no_terminal):
    run, line = Run(monkeypatch), ProgressLine()
    line.training(run.trainer, simulated=True)
    run.elapsed = lambda: 4.0
    run.at(line, 10, 500)
    assert capsys.readouterr().err == (
        "50 %, epoch 5.0, loss 0.50, 4 simulated s, 125 samples per simulated s, waiting 25 %, 10 s left\n"
    )


def test_parts_that_are_not_there():
    assert progress_text.line([], "dpsgd") == "" and progress_text.line([LinePart("saving", 0)], "a", 3) == ""
