"""`grsgd demo`: what it runs, what it prints, and its exit code when a part of it fails."""

import sys
from pathlib import Path

import pytest

from grsgd.cli import child, demo, main
from grsgd.runs.run_file import save_run
from tests.support.runs import fake_run


class Trainings:
    """Makes run files in place of ``grsgd run``; the training with number ``failing`` ends with ``code``."""

    def __init__(self, failing=None, code=1):
        self.failing, self.code, self.made = failing, code, []

    def __call__(self, arguments, seconds):
        self.made.append(arguments)
        if len(self.made) - 1 == self.failing:
            return self.code
        save_run(arguments[arguments.index("--out") + 1], fake_run())
        return 0


@pytest.fixture
def trainings(monkeypatch):
    trainings = Trainings()
    monkeypatch.setattr(demo, "in_a_process", trainings)
    return trainings


def test_three_trainings_a_table_and_a_plot(trainings, tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert main(["demo", "-n", "2", "--epochs", "3", "--out", str(folder)]) == 0
    assert [Path(words[3]).stem for words in trainings.made] == list(demo.ALGORITHMS)
    assert all(words[:3] == ["run", "-n", "2"] and words[-1] == "train.epochs=3" for words in trainings.made)
    assert capsys.readouterr().out.endswith(f"\nplot:\n{folder}/demo.png\n")
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("failing", range(3))
def test_a_training_that_fails_ends_the_demo_with_its_code(trainings, tmp_path, capsys, failing):
    trainings.failing, trainings.code = failing, 7
    assert main(["demo", "--out", str(tmp_path)]) == 7
    assert len(trainings.made) == failing + 1 and "plot:" not in capsys.readouterr().out


def test_a_table_or_a_plot_that_cannot_be_made_is_no_success(trainings, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "ALGORITHMS", ("grsgd",))
    (tmp_path / "demo.png").mkdir()
    assert main(["demo", "--out", str(tmp_path)]) != 0


def test_a_training_is_killed_at_the_end_of_its_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(child, "module", lambda name: [sys.executable, "-c", "import time; time.sleep(600)"])
    assert main(["demo", "--timeout", "0.2", "--out", str(tmp_path)]) == child.OVERDUE
    assert "ring_allreduce was killed after 0.2 s" in capsys.readouterr().err


def test_wrong_input_is_one_line(trainings, tmp_path, capsys):
    (tmp_path / "file").touch()
    for words in (["-n", "0"], ["--out", str(tmp_path / "file")], ["--copy", str(tmp_path)]):
        assert main(["demo", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert trainings.made == []


def test_examples_are_copied(trainings, tmp_path, capsys):
    assert main(["demo", "--copy", str(tmp_path / "examples")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'examples'}\n" and trainings.made == []
    assert {"base.toml", "grsgd.toml", "own_loop.py"} <= {path.name for path in (tmp_path / "examples").iterdir()}
    assert not (tmp_path / "examples").is_symlink()


def test_examples_are_not_copied_over_what_exists(tmp_path, capsys):
    assert main(["demo", "--copy", str(demo.EXAMPLES)]) == 2
    assert "is the folder of the examples in this clone: leave --copy out" in capsys.readouterr().err
    assert main(["demo", "--copy", str(tmp_path)]) == 2
    assert "exists already: name a new folder" in capsys.readouterr().err
    assert main(["demo", "--copy", str(tmp_path / "new")]) == 0 and (tmp_path / "new" / "dpsgd.toml").exists()
