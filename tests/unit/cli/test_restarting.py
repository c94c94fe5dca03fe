"""Restarts of `grsgd run` after the loss of a host; nothing is launched here."""

import os
import signal
import sys

import pytest

from grsgd.cli import main, restarting
from grsgd.job import start, words
from grsgd.job.hosts import Host
from grsgd.job.restarts import losses
from grsgd.mpi_environment import HEARTS, RESTARTS, without_launcher

CONFIG = '[algorithm]\nname = "dpsgd"\n[model]\nname = "mlp"\n[data]\nname = "digits"\n[train]\nsteps = 1\n'


class Hears:
    """Stands for a hearing: ``lost`` are the hosts whose hearts have said no last word, and ``said`` is the number of
    hosts whose hearts have."""

    lost_at, asked, cut = None, 0, ()

    def __init__(self, lost, said):
        self.lost, self.said, self.hosts = lost, said, "abc"[:said]

    def variables(self):
        return {HEARTS: ""}

    def conclude(self):
        return self.lost

    def has_said(self, hosts):
        return self.said >= hosts

    def in_words(self, hosts):
        return f"host {hosts[0]} (rank 0)"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Run `grsgd run` with attempts of which each is (exit code, lost hosts, hosts that answer then); return the exit
    code, and the launchers' commands with the losses that the ranks were told."""
    for name in {*os.environ} - {*without_launcher(os.environ)}:
        monkeypatch.delenv(name)
    monkeypatch.setenv(RESTARTS, "[]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    for script in ("own.py", "plain.py"):
        (tmp_path / script).touch()

    def run(attempts, *options, said=0, then=lambda: None, patience=0.0):
        todo, commands, answers = list(attempts), [], []

        def launched(command, gently, hearing):
            commands.append((command.short(), losses()))
            place = tmp_path / "kept" / f"samples-{len(commands)}"
            place.mkdir(parents=True, exist_ok=True)
            (place / "rank-0000.ckpt").touch()
            words.leave(words.GONE_ON, f"went on for the {len(commands)}. time")
            code, _, answer = todo.pop(0)
            answers.append(answer)
            return code

        monkeypatch.setattr(start, "run", launched)
        monkeypatch.setattr(start, "library_of", lambda launcher: "Open MPI")
        monkeypatch.setattr(restarting, "Hearing", lambda names, fences, absent: Hears(todo[0][1], said))
        monkeypatch.setattr(restarting, "kill_orphans", lambda: None)
        monkeypatch.setattr(restarting, "PATIENCE_SECONDS", patience)

        def there(hosts, missed=()):
            then()
            return [host for host in hosts if host.name in answers[-1]]

        monkeypatch.setattr(restarting.places, "answering", there)
        return main(["run", *options]), commands

    return run


HOSTS = ("-n", "4", "--hosts", "a:2,b:2,c:1", "--restarts", "2")


def test_a_spare_host_takes_ranks_and_the_job_goes_on_from_its_checkpoint(job, capsys):
    code, commands = job([(1, ["a"], "bc"), (1, [], "")], *HOSTS, "run.toml", "--checkpoint", "kept", said=2)
    assert code == 1, "a job that fails without the loss of a host is not started again"
    (first, told), (second, told_then) = commands
    assert "--host a:2,b:2 " in first and "--resume" not in first and told == []
    assert "--host b:2,c:1 " in second and "-n 3 " in second and second.endswith("--resume kept")
    assert [loss.hosts for loss in told_then] == ["host a (rank 0)"]
    assert "restart 1 of 2: 3 ranks on b:2, c:1" in capsys.readouterr().err


def test_states_are_removed_on_hosts_that_were_left_behind(job, monkeypatch):
    """Ranks of the last attempt remove the states on their own hosts."""
    removed = []
    monkeypatch.setattr(restarting.places, "run_on", lambda hosts, program: removed.append((hosts, program)))
    options = (*HOSTS, "run.toml", "--checkpoint", "kept", "--memory", "10", "--memory-folder", "/mem ory")
    assert job([(1, ["a"], "bc"), (0, [], "")], *options, said=2)[0] == 1, "no rank has written a run file"
    ((hosts, program),) = removed
    assert hosts == {"a"} and program[-1].startswith("rm -rf '/mem ory'/grsgd-*-")


def test_a_script_is_started_again_until_the_restarts_are_used_up(job, capsys):
    """A host that was lost and answers takes ranks after the other hosts."""
    code, commands = job([(1, ["a"], "abc"), (1, ["b"], "a"), (137, ["a"], "")], *HOSTS, "own.py")
    assert code == 137
    hosts = [command.split("--host ")[1].split()[0] for command, _ in commands]
    assert hosts == ["a:2,b:2", "b:2,c:1,a:1", "a:2"]
    said = capsys.readouterr().err
    assert "--restarts 2 is used up: host a (rank 0) at " in said
    assert "went on for the 2. time; host b (rank 0) at " in said and "went on for the 1. time" not in said


def test_hosts_are_asked_if_no_heart_says_which_host_is_lost(job, capsys):
    code, commands = job([(1, [], "c"), (0, [], "")], *HOSTS, "own.py", said=1)
    assert code == 0 and [loss.hosts for loss in commands[1][1]] == ["hosts a, b"]
    assert "lost hosts a, b" in capsys.readouterr().err


def test_a_launcher_that_returns_0_before_any_rank_has_begun(job, capsys):
    code, _ = job([(0, [], "b")], "-n", "4", "--hosts", "a:2,b:2", "own.py")
    assert code == 1 and "lost host a\n" in capsys.readouterr().err
    assert job([(0, [], "ab")], "-n", "4", "--hosts", "a:2,b:2", "plain.py")[0] == 0


def test_no_host_answers(job, capsys):
    code, commands = job([(1, ["a"], "")], *HOSTS, "run.toml", "--checkpoint", "kept")
    said = capsys.readouterr().err
    assert code == 1 and len(commands) == 1
    assert "too few hosts answer within 0 s (to go on later: --resume kept): none of b:2, c:1, a:2" in said


class Concludes(Hears):
    """Stands for a hearing that finds its lost hosts only after the launcher's end."""

    def __init__(self, lost, said):
        super().__init__([], said)
        self.found = lost

    def conclude(self):
        self.lost += self.found
        return self.lost


def test_a_host_without_last_words_is_asked(job, monkeypatch, capsys):
    """After the crash of a rank, srun kills all hearts, so a living host may say no last word."""
    monkeypatch.setattr(sys.modules[__name__], "Hears", Concludes)
    monkeypatch.setattr(restarting.places, "in_allocation", lambda: True)
    code, commands = job([(137, ["b"], "abc")], *HOSTS, "own.py", said=1)
    assert code == 137 and len(commands) == 1 and "lost" not in capsys.readouterr().err
    code, commands = job([(1, ["b"], "ac"), (0, [], "")], *HOSTS, "own.py", said=1)
    assert code == 0 and "lost host b (rank 0)" in capsys.readouterr().err and len(commands) == 2
    monkeypatch.setattr(restarting.places, "in_allocation", lambda: False)
    code, commands = job([(1, ["b"], "abc"), (0, [], "")], *HOSTS, "own.py", said=1)
    assert code == 0 and len(commands) == 2, "mpiexec kills no heart"


def test_hosts_that_die_during_a_launch_are_searched_for(job, monkeypatch):
    """Hosts are known to answer only after a restart."""
    made = []

    class Absence:
        def __init__(self, hosts, has_answered):
            made.append((" ".join(map(str, hosts)), has_answered))

        def look(self, heard):
            return []

    monkeypatch.setattr(restarting, "Absence", Absence)
    job([(1, ["a"], "bc"), (0, [], "")], *HOSTS, "own.py")
    assert made == [("a:2 b:2", False), ("b:2 c:1", True)]


@pytest.mark.parametrize("answers, rounds", [("abc", 1), ("ab", 3)])
def test_hosts_are_not_asked_again_without_need_or_pause(answers, rounds, job, monkeypatch, capsys):
    """The configuration allows no number of ranks; hosts that have not answered may come back."""
    clock, asked = [0.0], []
    monkeypatch.setattr(restarting.Restarting, "_refusal", lambda self, ranks: "must be 9")
    monkeypatch.setattr(restarting.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(restarting.time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))

    def then():
        asked.append(clock[0])
        assert len(asked) < 9

    code, _ = job([(1, ["a"], answers)], *HOSTS, "own.py", then=then, patience=1.5)
    said = capsys.readouterr().err
    assert code == 1 and asked == [float(number) for number in range(rounds)] and "must be 9" in said
    assert ("all hosts answer, but are too few: b:2, c:1, a:2 of b:2, c:1, a:2; with 4 ranks" in said) == (rounds == 1)


def test_states_in_memory_need_two_nodes_of_an_allocation(job, monkeypatch, capsys):
    monkeypatch.setattr(restarting.places, "of_allocation", lambda ranks: [Host("a", ranks)])
    assert job([], "--restarts", "1", *KEPT, "--memory", "5") == (2, [])
    assert "--memory: all 2 ranks are on one host" in capsys.readouterr().err


def test_hosts_that_answer_but_allow_no_number_of_ranks(job, tmp_path, monkeypatch, capsys):
    """The line says what the configuration demands of the ranks that fit."""
    (tmp_path / "pauses.toml").write_text(
        '[algorithm]\nname = "grsgd"\n[model]\nname = "mlp"\n[data]\nname = "digits"\n[optimizer]\nlr = 0.1\n'
        "[train]\nsteps = 5\n[stragglers.pause]\n3 = { every = 1, seconds = 0.1 }\n"
    )
    monkeypatch.setattr(restarting, "PATIENCE_SECONDS", 0.0)
    code, _ = job([(1, ["a"], "b")], *HOSTS, "pauses.toml", "--checkpoint", "kept")
    line = "with 2 ranks: stragglers.pause: rank 3 in a job of 2; allowed: 0 to 1"
    assert code == 1 and line in capsys.readouterr().err


@pytest.mark.parametrize(
    "number, target, code",
    [(signal.SIGUSR1, "run.toml", 75), (signal.SIGTERM, "own.py", 130), (signal.SIGUSR2, "own.py", 0)],
)
def test_a_signal_between_two_attempts(job, number, target, code, capsys):
    before = signal.getsignal(number)
    keeping = ("--checkpoint", "kept") if target == "run.toml" else ()
    attempts = [(1, ["a"], "bc"), (0, [], "")]
    found, commands = job(attempts, *HOSTS, target, *keeping, said=2, then=lambda: signal.raise_signal(number))
    said = capsys.readouterr().err
    remedy = " (to go on later: --resume kept)" if keeping else ""
    line = f"run: ended by {number.name} before the ranks were started again{remedy}\n"
    assert found == code and len(commands) == (1 if code else 2) and (line in said) == bool(code)
    assert signal.getsignal(number) == before


def test_a_signal_during_an_attempt_that_loses_a_host(job, monkeypatch, capsys):
    monkeypatch.setattr(Hears, "asked", signal.SIGUSR1)
    code, commands = job([(1, ["a"], "bc")], *HOSTS, "run.toml", "--checkpoint", "kept", said=2)
    assert code == 75 and len(commands) == 1 and "ended by SIGUSR1" in capsys.readouterr().err


KEPT = ("-n", "2", "run.toml", "--checkpoint", "kept")


@pytest.mark.parametrize(
    "options, line",
    [
        (("-n", "2", "--restarts", "1", "run.toml"), "--restarts: only with --checkpoint FOLDER"),
        (("-n", "2", "--restarts", "1", "own.py"), "--restarts: only with --hosts"),
        (("-n", "9", "--hosts", "a:2,b:2", "own.py"), "--hosts a:2,b:2: room for 4 ranks, which is less than -n 9"),
        (("-n", "2", "--restarts", "-1", "own.py"), "--restarts"),
        ((*KEPT, "--memory", "5"), "--memory: only with --restarts N"),
        (("--restarts", "1", "--hosts", "a:2,b:2", *KEPT, "--memory", "5"), "--memory: all 2 ranks are on one host"),
        (("--restarts", "1", "--hosts", "a:1,b:1", *KEPT, "--memory", "0"), "--memory 0: must be 1 or more"),
    ],
)
def test_what_is_refused(job, options, line, capsys):
    assert job([], *options) == (2, []) and line in capsys.readouterr().err


def test_a_run_does_not_go_on_from_checkpoints_of_another_run(job, tmp_path, capsys):
    (tmp_path / "kept" / "samples-1").mkdir(parents=True)
    assert job([(0, [], "")], *HOSTS, "run.toml", "--checkpoint", "kept")[1], "no rank had written a file yet"
    assert job([], *HOSTS, "run.toml", "--checkpoint", "kept") == (2, [])
    assert "--checkpoint kept: there are checkpoints of another run" in capsys.readouterr().err
    assert job([(0, [], "")], *HOSTS, "run.toml", "--resume", "kept")[1]


def test_fewer_ranks_must_be_allowed():
    class Even:
        def check_ranks(self, ranks):
            if ranks % 2:
                raise restarting.ConfigError("must be even")

    class Options:
        restarts, spares, checkpoint, resume, memory = 1, 1, "kept", None, None

    made = restarting.Restarting(Options, Options, 4, [Host("a", 4), Host("b", 4)])
    made.config = Even()
    assert [made._refusal(ranks) for ranks in (4, 3, 1)] == ["must be even", "", "all of them are spares, --spares 1"]
