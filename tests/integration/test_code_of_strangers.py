"""Code that configurations, run files and checkpoints name: what is imported, what is refused, and what is said."""

import importlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch

import grsgd
from grsgd import outside
from grsgd.cli import main
from grsgd.config import load, parse
from grsgd.errors import ConfigError
from grsgd.job.resume import Resumed
from grsgd.outside.kinds import KINDS, misfit
from grsgd.runs.run_file import save_run
from grsgd.training.loading import evaluate
from tests.support.said import complaint

CONFIG = """
device = "cpu"
[algorithm]
name = "dpsgd"
topology = "code.py:ring"
[model]
name = "code.py:Net"
[data]
name = "digits"
only_train = 100
only_test = 20
[task]
name = "code.py:Mine"
[schedule]
name = "code.py:falling"
peak = 0.5
[train]
steps = 2
snapshots = 1
"""
CODE = """
import numpy as np
from torch import nn
from activation import Activation
from grsgd.tasks import Classification

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10), Activation())

class Mine(Classification):
    pass

def falling(epochs, end, peak=1.0):
    return peak * (1 - epochs / end)

def ring(n):
    return np.eye(n) / 2 + (np.roll(np.eye(n), 1, 1) + np.roll(np.eye(n), -1, 1)) / 4
"""


@pytest.fixture
def path_and_modules(monkeypatch):
    """Take back, after a test, what it has imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    forget()
    yield
    for name in set(sys.modules) - before:
        if name in ("activation", "helper", "theirs", "random_names") or name.startswith(outside.PREFIX):
            del sys.modules[name]


def forget():
    """Let files be read again, as in another process."""
    for cache in (outside._file, outside._run, outside._source_of_module):
        cache.cache_clear()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, ``run.h5``, of code of one's own that lies in two files beside its configuration."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        Path("run.toml").write_text(CONFIG)
        Path("code.py").write_text(CODE)
        Path("activation.py").write_text("from torch.nn import Tanh as Activation\n")
        assert main("simulate run.toml --ranks 3 --out run.h5 --save model.pt".split()) == 0
        del sys.modules["activation"]
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch, path_and_modules):
    """The same in a folder of the test's own, the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, ".", dirs_exist_ok=True)
    return tmp_path


def edited(**sections) -> str:
    """Write ``theirs.h5``, the run with another configuration; its model stays the right one."""
    run = grsgd.load_run("run.h5")
    run.attributes["config"] = tomli_w.dumps(tomllib.loads(run.attributes["config"]) | sections)
    save_run("theirs.h5", run)
    return "theirs.h5"


def test_ones_own_run_is_evaluated_if_it_is_trusted(folder, capsys):
    """Refused in one line that says how; the file, and the one beside it that it imports, are found without a path."""
    capsys.readouterr()
    assert main(["evaluate", "run.h5"]) == 2
    said = complaint(capsys)
    assert said.count("\n") == 1
    assert "run.h5: its configuration names code, 'code.py:Mine', which would run: --trust (trust=True)" in said
    with pytest.raises(ConfigError, match="names code, 'code.py:Net'"):
        grsgd.load_model("run.h5")
    run = grsgd.load_run("run.h5")
    assert evaluate("run.h5", trust=True).value == run.attributes["final_test_accuracy"]
    assert grsgd.load_model("run.h5", trust=True)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert main(["evaluate", "model.pt", "run.toml"]) == 0  # of a configuration code runs without a word of trust


def test_what_is_imported_is_said_once(folder, capsys):
    forget()
    capsys.readouterr()
    assert main(["evaluate", "--trust", "run.h5"]) == 0
    assert capsys.readouterr().err == f"grsgd: imports {folder}/code.py\n"


@pytest.mark.parametrize("file", ["code.py", "activation.py"])
def test_code_that_has_changed_since_the_run_is_refused(folder, file):
    Path(file).write_text(Path(file).read_text().replace("Tanh", "ReLU").replace("nn.Flatten(),", "nn.Flatten(), "))
    forget()
    message = "code.py is not the code with which this file was made: the SHA-256 is .*task_code"
    with pytest.raises(ConfigError, match=message):
        evaluate("run.h5", trust=True)


def test_a_run_file_names_all_code_that_it_was_made_with(folder):
    attributes = grsgd.load_run("run.h5").attributes
    for part in ("model", "task", "schedule", "topology"):
        text = attributes[f"{part}_code_source"]
        assert CODE in text and "# ---- activation.py\nfrom torch.nn import Tanh" in text


ATTACKS = [
    {"model": {"name": "os:system", "command": "touch ran"}},
    {"model": {"name": "subprocess:run", "args": ["touch", "ran"]}},
    {"model": {"name": "builtins:exec", "source": "open('ran', 'w')"}},
    {"model": {"name": "theirs.py:run"}},
    {"model": {"name": "theirs.py:system", "command": "touch ran"}},
    {"model": {"name": "theirs:run"}},
    {"model": {"name": "torch.hub:load", "repo_or_dir": "theirs", "model": "x", "source": "local"}},
    {"model": {"name": "torch:load", "f": "theirs.pt", "weights_only": False}},
    {"data": {"name": "numpy:load", "file": "theirs.npy", "allow_pickle": True}},
    {"data": {"name": "os:system", "command": "touch ran"}},
    {"task": {"name": "theirs.py:run"}},
]


@pytest.mark.parametrize("sections", ATTACKS, ids=lambda sections: repr(sections)[:40])
def test_no_code_of_a_run_file_runs(folder, sections):
    """Neither that of files beside it, which is run where they are imported, nor any that is installed."""
    Path("theirs.py").write_text("from os import system\nopen('ran', 'w')\ndef run(): open('ran', 'w')\n")
    path = edited(**sections)
    with pytest.raises(ConfigError, match=r"names code, .*--trust"):
        evaluate(path)
    if sections.keys() == {"model"}:
        with pytest.raises(ConfigError, match=r"names code, .*--trust"):
            grsgd.load_model(path)
    Path("theirs.toml").write_text(grsgd.load_run(path).attributes["config"])
    assert not Path("ran").exists()


def test_settings_of_the_command_line_are_the_users(folder):
    path = edited(task={"name": "classification"})
    assert evaluate(path, overrides=["model.name=code.py:Net"]).samples == 20


def resumed(config: str) -> Resumed:
    return Resumed(Path("kept"), 48, 3, {}, None, config)


def test_the_code_of_a_checkpoint_is_that_of_the_job(folder):
    config = load("run.toml")
    assert resumed(config.toml()).configured(config, 3).task.name == "code.py:Mine"
    Path("theirs.py").write_text("open('ran', 'w')")
    content = tomllib.loads(config.toml())
    for table in ("algorithm", "task"):
        theirs = content | {table: {"name": "theirs.py:run"}}
        with pytest.raises(ConfigError, match="was made with another "):
            resumed(tomli_w.dumps(theirs)).configured(config, 3)
    assert not Path("ran").exists()


def called():
    raise AssertionError("was called")


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("models", "os:system", "os is of Python's standard library, which no configuration may name"),
        ("models", "os.path:join", "is of Python's standard library"),
        ("models", "builtins:exec", "is of Python's standard library"),
        ("models", "random_names.py:system", "neither a subclass of torch.nn.Module nor a function"),
        ("models", "random_names.py:run", "is a function of Python's standard library .subprocess."),
        ("models", "random_names.py:wrapped", "is a function of Python's standard library .subprocess."),
        ("models", "random_names.py:Popen", "neither a subclass of torch.nn.Module nor a function"),
        ("models", "random_names:run", "is a function of Python's standard library .subprocess."),
        ("models", "torch.hub:load", "is a function of the installed package torch: call it in a function of a file"),
        ("models", "torch.fx.graph_module:reduce_graph_module", "is a function of the installed package torch"),
        ("models", "torch:load", "is a function of the installed package torch"),
        ("models", "grsgd.training.loading:load_model", "is a function of grsgd.training.loading: from this package"),
        ("models", "torch.optim:SGD", "neither a subclass of torch.nn.Module nor a function"),
        ("data", "numpy:load", "is a function of the installed package numpy|not a function that returns"),
        ("data", "random_names.py:Popen", "not a function that returns .train, test."),
        ("schedules", "numpy:add", "not a function that returns a number"),
        ("topologies", "numpy:eye", "is a function of the installed package numpy"),
        ("tasks", "random_names.py:run", "is no subclass of grsgd.tasks.Task"),
        ("optimizers", "random_names.py:run", "not a torch.optim.Optimizer"),
        ("algorithms", "random_names.py:run", "not an algorithm"),
    ],
)
def test_what_is_not_of_its_kind_is_never_called(kind, name, why, tmp_path, monkeypatch, path_and_modules):
    monkeypatch.chdir(tmp_path)
    lines = ["import functools", "from os import system", "from subprocess import Popen, run"]
    lines += ["wrapped = functools.partial(functools.lru_cache(run), 'touch ran', shell=True)"]
    Path("random_names.py").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=why):
        outside.load(name, kind)
    assert not Path("ran").exists()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["torch", "numpy", "scipy", "h5py", "sklearn", "pandas", "numba", "matplotlib"])
def test_no_function_of_a_library_is_of_a_kind(package):
    """All that is loaded of each, under whatever name: some of them run text as code."""
    importlib.import_module(package)
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    found = [(value, kind) for module in modules for value in list(vars(module).values()) for kind in KINDS.values()]
    assert len(found) > 1000
    assert [value for value, kind in found if not isinstance(value, type) and not misfit(value, kind)] == []


@pytest.mark.exhaustive
def test_no_module_of_the_standard_library_is_imported_by_name():
    before = set(sys.modules)
    for module in sys.stdlib_module_names:
        for kind in KINDS:
            with pytest.raises(ConfigError, match="is of Python's standard library"):
                outside.load(f"{module}:run", kind)
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", ["own", "cached", "partial", "Callable", "torch.nn:Linear"])
def test_what_makes_a_model(name, tmp_path, monkeypatch, path_and_modules):
    monkeypatch.chdir(tmp_path)
    Path("helper.py").write_text("import torch\n@torch.no_grad()\ndef make(size=2): return torch.nn.Linear(size, 2)\n")
    text = "import functools\nfrom helper import make as own\ncached = functools.lru_cache(own)\n"
    text += "partial = functools.partial(own, 3)\nclass _C:\n    def __call__(self): return own()\nCallable = _C()\n"
    Path("random_names.py").write_text(text)
    made = outside.load(name if ":" in name else f"random_names.py:{name}", "models")
    assert made is torch.nn.Linear or isinstance(made(), torch.nn.Linear)


def test_a_file_beside_another_is_not_taken_for_an_installed_one(tmp_path, monkeypatch, path_and_modules):
    monkeypatch.chdir(tmp_path)
    Path("tabulate.py").write_text("x = 1")
    Path("random_names.py").write_text("import tabulate\ndef make(): pass")
    with pytest.raises(ConfigError, match="imports tabulate, which is not .*: give that file another name"):
        outside.load("random_names.py:make", "models")


def test_the_working_directory_is_left_out_where_a_module_lies_elsewhere(tmp_path, monkeypatch, path_and_modules):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    outside.load("torch.nn:Linear", "models")
    assert os.getcwd() not in sys.path
    Path("theirs.py").write_text("from torch.nn import Linear")
    outside.load("theirs:Linear", "models")
    assert sys.path[-1] == os.getcwd()


def test_options_of_a_schedule(folder, capsys):
    capsys.readouterr()
    run = "simulate run.toml --ranks 2 --out other.h5 --set".split()
    assert main([*run, "schedule.paek=0.5"]) == 2
    assert "schedule.paek: unknown key (did you mean peak?); allowed: name, warmup, peak" in complaint(capsys)
    assert main([*run, "schedule={name='cosine', peak=1}"]) == 2
    assert "schedule.peak: unknown key; allowed: name, warmup, milestones, factor" in complaint(capsys)
    assert 'peak = 0.5' in parse(tomllib.loads(Path("run.toml").read_text())).toml()
