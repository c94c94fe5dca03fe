"""Words of ranks, by which `grsgd run` and `grsgd testbed` know whether a job has come to its end."""

import os
import subprocess
import sys
import time

import pytest

from grsgd.cli import main
from grsgd.job import words
from grsgd.mpi_environment import WORDS, without_launcher
from grsgd.runs.ending import end_attributes
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run


def of(monkeypatch, rank, word):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
    words.leave(word)
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")


@pytest.mark.parametrize(
    "begun, ended, whole, trains, missing",
    [
        ((0, 1), (0, 1), False, False, None),
        ((0, 1, 2), (1,), False, False, "ranks 0, 2 have begun and not come to the end"),
        ((0, 1), (0,), False, True, "rank 1 has begun and not come to the end"),
        ((0, 1), (0,), True, True, None),  # the process of rank 1 has died, and the others have gone on
        ((), (), False, False, None),  # a program without words
        ((), (), False, True, "no rank has said that the run file is whole"),
        ((0, 1), (0, 1), False, True, "no rank has said that the run file is whole"),
    ],
)
def test_what_is_missing(begun, ended, whole, trains, missing, monkeypatch):
    with words.asked_for() as asked:
        for word, ranks in ((words.BEGUN, begun), (words.ENDED, ended), (words.WHOLE, (0,) if whole else ())):
            for rank in ranks:
                of(monkeypatch, rank, word)
        assert asked.missing(trains) == missing
        code, line = asked.judged(0, trains)
        assert code == (missing is not None) and (line is None) == (missing is None)
        assert asked.judged(137, trains) == (137, None)
        folder = asked.folder
    assert not folder.exists() and WORDS not in os.environ


def test_exit_codes_of_scripts_that_a_launcher_does_not_pass_on(monkeypatch):
    with words.asked_for() as asked:
        for rank in range(4):
            of(monkeypatch, rank, words.BEGUN)
            monkeypatch.setattr("grsgd.job.exit_code._noted", [3 * (rank % 2)])
            monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
            words.script_has_ended()
            monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
        of(monkeypatch, 0, words.WHOLE)
        failed = "ranks 1, 3 have ended with exit code 3"
        assert asked.judged(0, True) == (1, f"the launcher's exit code is 0, but {failed}")
        assert asked.judged(3, True) == (3, failed)


def test_a_new_run_file_counts_where_ranks_do_not_see_the_folder(tmp_path):
    path = tmp_path / "run.h5"
    run = fake_run()
    run.attributes |= end_attributes("epochs")
    save_run(path, run)
    os.utime(path, (time.time() - 60,) * 2)
    with words.asked_for(str(path)) as asked:
        assert asked.missing(leaves_file=True) == f"no rank has said that the run file is whole: {path}"
        save_run(path, run)
        assert asked.missing(leaves_file=True) is None
        run.attributes |= end_attributes("terminated (SIGTERM)")
        save_run(path, run)
        assert asked.missing(leaves_file=True)


def test_a_rank_outside_of_a_job_leaves_no_word(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(WORDS, raising=False)
    words.leave(words.BEGUN)
    monkeypatch.setenv(WORDS, "no/such/folder")
    words.leave(words.BEGUN)
    assert not list(tmp_path.iterdir())


SCRIPT = """
import os, sys
import grsgd
grsgd.rank()
if sys.argv[1] == "quits":
    os._exit(0)
"""


@pytest.mark.parametrize("how, code", [("ends", 0), ("quits", 1)])
def test_a_script_that_does_not_come_to_its_end(how, code, tmp_path, monkeypatch):
    """The launcher of the test starts one process, and returns 0 whatever becomes of it."""
    (tmp_path / "mpiexec").write_text('#!/bin/sh\nshift 2\n"$@"\nexit 0\n')
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "own.py").write_text(SCRIPT)
    program = "import sys; from grsgd.cli import main; from grsgd.job import start; mpiexec = sys.argv.pop(1); "
    program += "start.find_mpiexec = lambda: mpiexec; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "mpiexec", "run", "-n", "1", tmp_path / "own.py", how],
        env=without_launcher(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    line = "grsgd: error: run: the launcher's exit code is 0, but rank 0 has begun and not come to the end"
    assert (line in done.stderr) == (how == "quits") and "Traceback" not in done.stderr


def test_a_run_without_a_run_file_is_no_success(tmp_path, monkeypatch, capsys):
    """As of a launcher that returns 0 after it has killed all ranks."""
    (tmp_path / "run.toml").write_text('[algorithm]\nname = "dpsgd"\n[model]\nname = "mlp"\n[data]\nname = "digits"\n')
    (tmp_path / "mpiexec").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "mpiexec").chmod(0o755)
    for name in {*os.environ} - {*without_launcher(os.environ)}:
        monkeypatch.delenv(name)
    monkeypatch.setattr("grsgd.job.start.find_mpiexec", lambda: str(tmp_path / "mpiexec"))
    assert main(["run", "-n", "2", str(tmp_path / "run.toml"), "--set", "train.steps=1", "--out", "x.h5"]) == 1
    assert capsys.readouterr().err.endswith(
        "grsgd: error: run: the launcher's exit code is 0, but no rank has said that the run file is whole: x.h5\n"
    )
    assert main(["run", "-n", "2", str(tmp_path / "run.toml"), "--set", "train.steps=1", "--check"]) == 0


def test_a_job_that_never_called_grsgd_is_told_that_its_processes_were_alone(tmp_path, monkeypatch, capfd):
    (tmp_path / "mpiexec").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "alone.py").write_text("print('trained')\n")
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "calls.py").write_text("import grsgd\ngrsgd.rank()\n")
    for name in {*os.environ} - {*without_launcher(os.environ)}:
        monkeypatch.delenv(name)
    monkeypatch.setattr("grsgd.job.start.find_mpiexec", lambda: str(tmp_path / "mpiexec"))
    for ranks, script, code, is_told in (
        (2, "alone", 0, True),
        (1, "alone", 0, False),
        (2, "fails", 3, False),
        (2, "calls", 0, False),
    ):
        assert main(["run", "-n", str(ranks), str(tmp_path / f"{script}.py")]) == code
        line = f"grsgd: no rank of this job has called grsgd: unless the script itself connects its {ranks} processes"
        assert (line in capfd.readouterr().err) == is_told, (script, ranks)
