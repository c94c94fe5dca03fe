"""The command that ``grsgd run`` starts, and how it ends it."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from grsgd import mpi_environment
from grsgd.cli import main, reference, training
from grsgd.errors import ConfigError
from grsgd.job import start
from grsgd.mpi_environment import DEFAULTS, without_launcher
from tests.support.launcher import start_command

VERSIONS = {"openmpi": "mpiexec (Open MPI) 5.0.11", "mpich": "HYDRA build details:"}
SIGNALS = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: os.write(1, signal.Signals(number).name.encode() + b" "))
os.write(1, b"begun ")
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    time.sleep(0.05)
"""
"""What stands for a launcher: it says which signals it gets, and does not end."""


CONFIG = """
[algorithm]
name = "grsgd"
[model]
name = "mlp"
[data]
name = "digits"
[train]
steps = 1
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a configuration, a script and programs that stand for launchers, outside of any job."""
    for name in {*os.environ} - {*without_launcher(os.environ)} | DEFAULTS.keys():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "own.py").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mpi_environment.sys, "executable", str(tmp_path / "python"))

    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    program("python", "true")
    return program


def dry_run(capsys, *arguments) -> list[str]:
    assert main(["run", "--dry-run", *arguments]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1 and not output.err
    return shlex.split(output.out)


@pytest.mark.parametrize("library", VERSIONS)
def test_the_command_can_be_copied(library, place, capsys):
    place("mpiexec", f"echo '{VERSIONS[library]}'")
    words = dry_run(capsys, "-n", "3", "run.toml", "--out", "my run.h5", "-n", "5")
    given = [word for word in words if "=" in word and word.split("=")[0] in DEFAULTS]
    rest = ["mpiexec", "-n", "3", "python", "-u", "-P", "-m", "grsgd", "train", "run.toml"]
    rest += ["--out", "my run.h5", "-n", "5"]
    assert words == [*given, *rest]
    names = {word.split("=")[0] for word in given}
    as_root = {name for name in DEFAULTS if "AS_ROOT" in name}
    expected = DEFAULTS.keys() - (as_root if os.geteuid() else set())
    assert names == (expected if library == "openmpi" else {"OMP_NUM_THREADS"})


@pytest.mark.parametrize("library", VERSIONS)
@pytest.mark.parametrize("is_watched", [False, True])
def test_what_a_script_prints_is_passed_on_at_once_to_a_terminal(library, is_watched, place, monkeypatch):
    """A progress bar is one line until it ends; lines of a log stay whole."""
    place("mpiexec", f"echo '{VERSIONS[library]}'")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_watched, raising=False)
    raw = ["--output", ":raw"] if is_watched and "Open MPI) 5" in VERSIONS[library] else []
    assert start.job("own.py", [], 2).command[1:-3] == [*raw, "-n", "2"]
    assert "--output" not in start.job("run.toml", [], 2).command


def test_spares_of_a_script_and_of_a_configuration(place, capsys):
    """A script is told by a variable how many there are, a configuration by an option of grsgd train."""
    place("mpiexec", f"echo '{VERSIONS['openmpi']}'")
    words = dry_run(capsys, "-n", "6", "--spares", "2", "own.py", "--lr", "1")
    command = "mpiexec --with-ft ulfm -x GRSGD_SPARES=2 -n 6 python -u own.py --lr 1".split()
    assert [word for word in words if word.split("=")[0] not in {*DEFAULTS, "PMI_SIZE"}] == command
    words = dry_run(capsys, "-n", "6", "--spares", "2", "run.toml")
    assert words[-2:] == ["--spares", "2"] and "--with-ft" in words and "-x" not in words


def test_spares_of_a_script_need_a_launcher_that_survives(place):
    place("mpiexec", f"echo '{VERSIONS['mpich']}'")
    with pytest.raises(ConfigError, match="--spares 0: only with Open MPI's mpiexec, which can survive deaths"):
        start.job("own.py", [], 2, spares=0)


def test_variables_that_are_set_are_not_set_again(place, capsys, monkeypatch):
    place("mpiexec", "echo HYDRA")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert dry_run(capsys, "-n", "2", "own.py", "--lr", "1") == "mpiexec -n 2 python -u own.py --lr 1".split()


@pytest.mark.parametrize(
    "given, started",
    [
        (["python", "-W", "error", "own.py", "--lr", "1"], ["python", "-u", "-W", "error", "own.py", "--lr", "1"]),
        (["python3.11", "own.py"], ["python", "-u", "own.py"]),
        (["-m", "pkg.train", "--lr", "1", "-n", "3"], ["python", "-u", "-m", "pkg.train", "--lr", "1", "-n", "3"]),
        (["script", "-m", "x"], ["python", "-u", "script", "-m", "x"]),
        (["folder", "1"], ["python", "-u", "folder", "1"]),
        (["run.conf"], ["python", "-u", "-P", "-m", "grsgd", "train", "run.conf"]),
    ],
)
def test_what_may_be_run(given, started, place, capsys, monkeypatch, tmp_path):
    place("mpiexec", "echo HYDRA")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "script").write_text("import sys\n")
    (tmp_path / "run.conf").write_text(CONFIG)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").touch()
    assert dry_run(capsys, "-n", "2", *given) == ["mpiexec", "-n", "2", *started]


def test_variables_are_printed_only_if_asked_for(place, capsys):
    place("mpiexec", "echo HYDRA")
    for options, words in (((), "mpiexec -n 2 python -u own.py"), (("-v",), "OMP_NUM_THREADS=1 mpiexec")):
        assert main(["run", *options, "-n", "2", "own.py"]) == 0
        assert capsys.readouterr().err.startswith(words)


def test_in_an_allocation(place, capsys, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # where no file is called srun
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "6", "SLURM_CPUS_PER_TASK": "2"}.items():
        monkeypatch.setenv(name, value)
    place("mpiexec", "echo 'mpiexec (Open MPI) 5.0.11'")
    place("srun", "exit 0")
    words = dry_run(capsys, "../run.toml")
    assert words[:5] == "OMP_NUM_THREADS=2 SRUN_CPUS_PER_TASK=2 srun --mpi=pmix --ntasks=6".split()
    assert "mpiexec" in dry_run(capsys, "--launcher", "mpiexec", "../run.toml")
    place("srun", "exit 1")
    words = dry_run(capsys, "../run.toml")
    assert "mpiexec" in words and "PRTE_MCA_hwloc_default_binding_policy=none" in words
    assert not any("oversubscribe" in word or "yield" in word for word in words)


def test_srun_binds_in_an_allocation_and_one_core_of_four_is_left_to_messages(place, capsys, monkeypatch):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "4"}.items():
        monkeypatch.setenv(name, value)
    place("scontrol", "echo 'TaskPlugin              = task/cgroup,task/affinity'")
    place("srun", "exit 0")
    words = dry_run(capsys, "run.toml")
    assert words[:5] == "OMP_NUM_THREADS=3 SRUN_CPUS_PER_TASK=4 srun --cpu-bind=cores --mpi=pmix".split()
    words = dry_run(capsys, "--bind", "off", "run.toml")
    assert words[:4] == "OMP_NUM_THREADS=3 SRUN_CPUS_PER_TASK=4 GRSGD_BIND=off srun".split()
    assert "--cpu-bind=cores" not in words


def test_the_way_of_binding_reaches_the_ranks(place, capsys):
    place("mpiexec", f"echo '{VERSIONS['openmpi']}'")
    words = dry_run(capsys, "-n", "2", "--bind", "on", "own.py")
    assert words[words.index("-x") + 1] == "GRSGD_BIND=on"
    place("mpiexec", "echo HYDRA")
    assert "GRSGD_BIND=on" in dry_run(capsys, "-n", "2", "--bind", "on", "own.py")
    assert dry_run(capsys, "-n", "2", "--bind", "on", "-m", "pkg.train")[-2:] == ["-m", "pkg.train"]


def test_gpus_per_task_over_several_nodes_need_srun(place, capsys, monkeypatch):
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_GPUS_PER_TASK": "1"}.items():
        monkeypatch.setenv(name, value)
    place("mpiexec", f"echo '{VERSIONS['openmpi']}'")
    assert "mpiexec" in dry_run(capsys, "--launcher", "mpiexec", "own.py")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    with pytest.raises(ConfigError, match="^run: mpiexec: with --gpus-per-task, .* --gpus-per-node, or use --launcher"):
        start.job("own.py", [], None, "mpiexec")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run.toml"], "run: how many ranks? grsgd run -n 4 CONFIG.toml"),
        (["run.toml", "-n", "2"], "run: -n stands before run.toml: grsgd run -n 4 run.toml"),
        (["-n", "0", "run.toml"], "run: -n 0: must be 1 or more"),
        (["-n", "2", "nothing.toml"], "run: nothing.toml: no such file"),
        (["-n", "2", "nothing", "--lr", "1"], "run: nothing: no such file: must be a configuration (.toml), a script"),
        (["-n", "2", "."], "run: .: a folder without __main__.py: name the script in it, or -m MODULE"),
        (["-n", "2", "python"], "run: python: names no script: grsgd run -n 2 SCRIPT.py"),
        (["-n", "2", "run.toml", "--spares", "2"], "with --spares 2, -n 2: must be 3 or more"),
        (["-n", "2", "run.toml", "--resume", "nowhere"], "--resume nowhere: no such folder"),
    ],
)
def test_wrong_use_is_one_line(arguments, message, place, capsys):
    place("mpiexec", "[ $1 = --version ] || exit 7")
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"grsgd: error: {message}") and error.count("\n") == 1


def test_a_wrong_configuration_is_told_before_ranks_start(place, capsys):
    place("mpiexec", "[ $1 = --version ] || exit 7")
    wrong = {"algorithm.H=x": "algorithm.H = 'x'", "algorithm.topology=hypercube": "a hypercube of 3"}
    for change, message in wrong.items():
        assert main(["run", "-n", "3", "run.toml", "--set", change]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_wrong_options_of_train_are_told_before_ranks_start(place, capsys):
    assert main(["run", "-n", "2", "run.toml", "--epochs", "3"]) == 2
    assert "unrecognized arguments: --epochs 3" in capsys.readouterr().err


def test_not_below_a_launcher(place, capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert main(["run", "-n", "2", "run.toml"]) == 2
    assert "Open MPI's mpiexec has started 2 processes of this command" in capsys.readouterr().err


@pytest.mark.parametrize("text, code", [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_passed_on(text, code, place):
    place("mpiexec", f"[ $1 = --version ] || {text}")
    assert main(["run", "-n", "2", "run.toml"]) == code


def run_of(target, tmp_path, **limits) -> subprocess.Popen:
    """``grsgd run`` with a launcher that ends at no signal but SIGKILL; ``limits``: what is set in `start`."""
    (tmp_path / "mpiexec").write_text(f"#!{sys.executable}\n{SIGNALS}")
    (tmp_path / "mpiexec").chmod(0o755)
    program = f"""
import sys
from grsgd.job import start
vars(start).update({limits})
sys.exit(start.run(start.JobCommand({{}}, [sys.argv[1], sys.executable]), gently={target == "run.toml"}))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "mpiexec")]
    process = start_command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert os.read(process.stdout.fileno(), 6) == b"begun "
    return process


def test_signals_are_gentle_first(tmp_path):
    process = run_of("run.toml", tmp_path)
    said = b""
    for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        said += os.read(process.stdout.fileno(), 20)
    assert said == b"SIGUSR2 SIGUSR1 SIGTERM "
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 130
    assert b"stopping: the measurements are evaluated and saved" in process.stderr.read()


@pytest.mark.parametrize("target, stops", [("run.toml", 1), ("own.py", 0)])
def test_user_signals_are_passed_on(target, stops, tmp_path):
    """SIGUSR1 ends a training, but repeated ones force nothing; a script may go on after it."""
    process = run_of(target, tmp_path)
    said = b""
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
        said += os.read(process.stdout.fileno(), 20)
    assert said == b"SIGUSR2 SIGUSR1 SIGUSR1 SIGUSR2 " and process.poll() is None
    process.kill()
    process.wait(20)
    assert process.stderr.read().count(b"stopping") == stops


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("text, code", [("75", 75), ("3", 130), ("0", 0)])
def test_the_exit_code_of_a_checkpoint_is_kept_after_a_signal(text, code, number):
    """In a process of one thread: another thread of this one may receive the signal, which would end the process."""
    launcher = f"import os, signal; signal.signal({start.GENTLE:d}, lambda *_: os._exit({text})); "
    launcher += f"os.kill(os.getppid(), {number:d}); signal.pause()"
    program = "import sys; from grsgd.job import start; "
    program += f"sys.exit(start.run(start.JobCommand({{}}, [sys.executable, '-c', {launcher!r}]), gently=True))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == code


def test_the_end_of_a_job_is_seen_without_its_signal():
    """Another thread of the process may have received SIGCHLD."""

    def give_up(*_):
        raise TimeoutError("the end of the job was not seen")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    try:
        process = SimpleNamespace(poll=iter([None, None, 0]).__next__)
        assert not start.attend(process, {signal.SIGCHLD}, gently=False)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_what_nohup_ignores_is_ignored(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = run_of("run.toml", tmp_path)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert os.read(process.stdout.fileno(), 20) == b"SIGUSR1 "
    process.kill()
    process.wait(20)
    assert process.stderr.read().count(b"stopping") == 1


def test_a_script_gets_the_signals_themselves(tmp_path):
    process = run_of("own.py", tmp_path)
    process.send_signal(signal.SIGINT)
    assert os.read(process.stdout.fileno(), 20) == b"SIGINT "
    process.kill()
    process.wait(20)
    assert process.stdout.read() == b""  # closed: its launcher has ended with it


def test_a_job_that_does_not_end_is_killed(tmp_path):
    process = run_of("run.toml", tmp_path, ENDING_SECONDS=0.1, KILLING_SECONDS=5.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert process.stdout.read() == b"SIGUSR1 SIGTERM "


@pytest.mark.parametrize("is_main", [True, False])
def test_a_rank_ends_with_its_launcher_but_not_with_a_thread_of_it(is_main, tmp_path):
    """The launcher's thread that starts the rank ends, then the launcher is killed."""
    rank = "import os, sys, time; from grsgd.job.ending import end_with_launcher; end_with_launcher(); "
    rank += "print('begun', flush=True); sys.stdin.readline(); print('alive', flush=True); sys.stdin.readline()"
    launcher = f"""
import subprocess, sys, threading, time
def start():
    subprocess.Popen([sys.executable, "-c", {rank!r}])
    time.sleep(1)
if {is_main}:
    start()
else:
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
time.sleep(60)
"""
    process = start_command([sys.executable, "-c", launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    if is_main:
        process.kill()
    else:
        process.poll()
        time.sleep(2)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"alive\n"
        process.kill()
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.wait(20)
    assert process.stdout.read() == b""  # closed: both have ended
    process.stdin.close()


def test_commands_have_help_without_docstrings(monkeypatch, capsys):
    """As under ``python -OO``."""
    for function in (training.train, training.run, reference.config):
        monkeypatch.setattr(function, "__doc__", None)
    assert main([]) == 2
    assert "train" in capsys.readouterr().out


def test_a_process_without_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["algorithms", "grsgd"]) == 0 and main(["algorithms", "nothing"]) == 2


@pytest.mark.parametrize("library, expected", [("mpiexec (Open MPI) 5.0.11", ["PMI_SIZE=1"]), ("HYDRA", [])])
def test_accelerate_takes_a_rank_of_a_script_for_a_program_alone(library, expected, place, capsys):
    place("mpiexec", f"echo '{library}'")
    assert [word for word in dry_run(capsys, "-n", "2", "own.py") if "PMI" in word] == expected
    assert not any("PMI" in word for word in dry_run(capsys, "-n", "2", "run.toml"))


class Deaf:
    """Stands for a hearing that finds a host lost once the file ``begun`` exists."""

    def __init__(self, begun=Path("never")):
        self.begun, self.lost = begun, []

    def look(self):
        newly = ["b"] if self.begun.exists() and not self.lost else []
        self.lost += newly
        return newly

    def why(self, hosts):
        return f"no sign of life of host {hosts[0]} (rank 1) for 4 s"


@pytest.mark.parametrize(
    "trap, code", [("", 128 + signal.SIGTERM), ("trap '' TERM; ", 128 + signal.SIGKILL), ("trap 'exit 0' TERM; ", 1)]
)
def test_a_job_that_has_lost_a_host_is_ended(trap, code, monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(start, "LOST_SECONDS", 30.0 if code == 1 else 0.3)
    monkeypatch.setattr(start, "adopt_orphans", lambda: None)
    job = start.JobCommand({}, ["sh", "-c", f"{trap}: > {tmp_path}/begun; while true; do sleep 0.1; done"])
    assert start.run(job, gently=True, hearing=Deaf(tmp_path / "begun")) == code
    assert "grsgd: no sign of life of host b (rank 1) for 4 s: the job is ended" in capfd.readouterr().err


class Asked(Deaf):
    """A hearing during whose looks a signal arrives in this thread."""

    def look(self):
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        return []


def test_a_watched_job_knows_the_signal_that_has_asked_for_its_end(monkeypatch):
    monkeypatch.setattr(start, "adopt_orphans", lambda: None)
    hearing = Asked()
    assert start.run(start.JobCommand({}, ["sleep", "60"]), gently=True, hearing=hearing) == 130
    assert hearing.asked == signal.SIGUSR1
