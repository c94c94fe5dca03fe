"""Algorithms in files outside of the package: the README's example, and what can be wrong with one."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grsgd
from grsgd.algorithms import ALGORITHMS
from grsgd.cli import main
from grsgd.config import load
from grsgd.errors import ConfigError
from grsgd.job import prepare
from grsgd.job import run as runs
from tests.support.said import complaint
from tests.support.threads import on_threads

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CONFIG = """
[algorithm]
name = "mine.py:Local"
H = 2
[model]
name = "mlp"
hidden = [4]
[data]
name = "synthetic"
shape = [1, 4, 4]
[train]
steps = 6
snapshots = 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the README's example and a configuration."""
    (example,) = re.findall(r"```python\n(from pydantic.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulated(out, *arguments):
    assert main(["simulate", "run.toml", "--ranks", "3", "--out", out, *arguments]) == 0
    return grsgd.load_run(out)


def test_the_example_is_simulated(folder, capsys):
    mine = simulated("mine.h5")
    ours = simulated("ours.h5", "--set", "algorithm.name=local_sgd", "--set", "algorithm.H=2")
    assert mine.attributes["final_test_accuracy"] == ours.attributes["final_test_accuracy"]
    assert (mine.traffic["sent"] == ours.traffic["sent"]).all() and mine.traffic["sent"].any()
    capsys.readouterr()
    assert main(["report", "mine.h5", "ours.h5"]) == 0
    table = capsys.readouterr().out
    assert "my_local_sgd, 3 ranks" in table and "| local_sgd, 3 ranks" in table


def test_the_run_file_keeps_the_source(folder):
    attributes = simulated("run.h5").attributes
    assert attributes["algorithm"] == "my_local_sgd" and 'name = "mine.py:Local"' in attributes["config"]
    assert attributes["algorithm_source"] == (folder / "mine.py").read_text()
    assert attributes["algorithm_file"] == str(folder / "mine.py") and len(attributes["algorithm_sha256"]) == 64
    assert "algorithm_source" not in simulated("ours.h5", "--set", "algorithm.name=local_sgd").attributes


def test_another_source_is_another_experiment(folder, capsys):
    simulated("first.h5")
    (folder / "mine.py").rename(folder / "yours.py")
    text = (folder / "yours.py").read_text()
    for file, added in (("mine.py", "\n"), ("other/mine.py", "# another\n")):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text + added)
    simulated("second.h5", "--set", "algorithm.name=other/mine.py:Local", "--set", "seed=1")
    capsys.readouterr()
    assert main(["report", "--group", "first.h5", "second.h5"]) == 0
    assert capsys.readouterr().out.count("| my_local_sgd") == 2


def test_a_sweep_makes_runs_of_a_changed_source_again(folder):
    def name_and_code(*more) -> tuple[str, int]:
        command = [sys.executable, ROOT / "slurm" / "finished.py", "runs/mine-n3", "3", "run.toml", *more]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, timeout=120, check=False, text=True, stdout=subprocess.PIPE)
        return done.stdout.strip(), done.returncode

    (folder / "runs").mkdir()
    (folder / "mine.py").write_text("print('hello')\n" + (folder / "mine.py").read_text())
    first, code = name_and_code()
    assert code == 1 and re.fullmatch(r"runs/mine-n3-[0-9a-f]{12}\.h5", first)
    simulated(first)
    assert name_and_code() == (first, 0)
    other, code = name_and_code("--set", "optimizer.lr=0.3")
    assert code == 1 and other != first, "another setting has another file, which replaces none"
    assert name_and_code("--set", "nothing=3") == ("runs/mine-n3.h5", 1)
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + "# changed\n")
    changed, code = name_and_code()
    assert code == 1 and changed not in (first, other)


def test_the_example_trains(folder, monkeypatch):
    monkeypatch.setattr(runs, "Interruption", lambda *_: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(prepare.gpu, "use_threads", lambda: None)
    for module in (runs, prepare):
        monkeypatch.setattr(module, "within", lambda seconds, what: nullcontext())
    config, out = load("run.toml", ["comm.progress_mode=inline"]), folder / "trained.h5"
    on_threads(monkeypatch, 2, lambda mpi: runs.run(mpi, config, out))
    run = grsgd.load_run(out)
    assert run.attributes["label"] == "my_local_sgd" and run.ranks["steps"].tolist() == [6, 6]


def test_the_example_in_a_loop_of_ones_own(folder, monkeypatch):
    def work(mpi):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + mpi.rank))
        optimizer = grsgd.distribute(model, optimizer, "mine.py:Local", mpi, H=1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.finish()
        return model.weight.detach().clone()

    first, second = on_threads(monkeypatch, 2, work)
    assert torch.equal(first, second)


def test_the_example_is_listed(folder, capsys):
    assert main(["algorithms", "mine.py:Local"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "my_local_sgd (synchronous)",
        "    Each rank trains alone and averages its model with all others every H steps.",
        "    source: yours",
    ]
    assert "    H = 4: local steps between two averages [integer >= 1]" in lines


def test_a_path_is_relative_to_the_configuration_if_it_is_not_here(folder, monkeypatch):
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    config = load("../run.toml")
    assert config.algorithm_class.name == "my_local_sgd" and config.algorithm.name == "../mine.py:Local"
    (folder / "below" / "run.toml").write_text('base = "../run.toml"\nseed = 3')
    assert load("run.toml").algorithm_options.H == 2


def test_a_module_by_its_name(folder, monkeypatch):
    (folder / "my_package").mkdir()
    source = (folder / "mine.py").read_text().replace("my_local_sgd", "of_a_module")
    (folder / "my_package" / "local.py").write_text(source)
    monkeypatch.setitem(ALGORITHMS, "of_a_module", None)  # which other tests need not know of, is removed afterwards
    del ALGORITHMS["of_a_module"]
    run = simulated("run.h5", "--set", "algorithm.name=my_package.local:Local")
    assert run.attributes["algorithm"] == "of_a_module" and run.attributes["algorithm_source"] == source


@pytest.mark.parametrize(
    "name, text, reason",
    [
        (
            "none.py:Local",
            None,
            "none.py: No such file or directory, neither in the working directory nor in the configuration's folder",
        ),
        ("wrong.py:Local", "from grsgd.algorithms import Algorithm", "wrong.py has no class 'Local'; there are none"),
        ("mine.py:Locla", None, "mine.py has no class 'Locla'; there are Local"),
        ("wrong.py:Local", "class Local: pass", "not an algorithm; write class Local.grsgd.algorithms.Algorithm"),
        ("wrong.py:Local", "x = 1\nraise KeyError('no\\nsuch')", "wrong.py, line 2: KeyError: 'no\\\\nsuch'"),
        ("wrong.py:Local", "x = 1\ndef f(:", "wrong.py: SyntaxError: invalid syntax"),
        ("wrong.py:Local", "import missing", "wrong.py, line 1: ModuleNotFoundError: No module named 'missing'"),
        ("below/../wrong.py:Local", "x = 1\nraise KeyError(3)", "below/../wrong.py, line 2: KeyError: 3"),
        ("no_such.module:Local", None, "there is no module no_such"),
        ("mine.py", None, "unknown; allowed: adpsgd, .*, FILE.py:CLASS or PACKAGE.MODULE:CLASS"),
        (
            "wrong.py:Local",
            "from grsgd.algorithms import Algorithm\nclass Local(Algorithm, name='mine'): pass",
            "wrong.py, line 2: TypeError: algorithm 'mine' has no traits: say traits = Traits.synchronous=",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(folder, capsys, name, text, reason):
    (folder / "below").mkdir()
    if text is not None:
        (folder / "wrong.py").write_text(text)
    with pytest.raises(ConfigError, match=f"^run.toml: algorithm.name = '{name}': .*{reason}") as refused:
        load("run.toml", [f"algorithm.name={name}"])
    assert "\n" not in str(refused.value)
    assert main(["algorithms", name]) == 2
    assert complaint(capsys).startswith(f"grsgd: error: algorithms: '{name}'")
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=f"^algorithm '{name}': "):
        grsgd.distribute(model, torch.optim.SGD(model.parameters()), name)
