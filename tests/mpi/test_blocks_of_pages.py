"""Python code on pages, as a reader runs it: block after block, in a folder with the files that the page speaks of.

Blocks of the pages in `ELSEWHERE` run in the tests that the table names.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import grsgd
from coding.codec import Codec
from coding.plan import packet_plan
from coding.tolerant import tolerant_code
from grsgd.cli import main
from grsgd.data import base as data
from grsgd.mpi_environment import without_launcher
from tests.support import launcher
from tests.support.code_blocks import ALL

ELSEWHERE = {
    "docs/how-to/own-loops.md": "tests/mpi/test_own_pages.py",
    "docs/how-to/own-scripts.md": "tests/mpi/test_own_pages.py",
    "docs/how-to/failures.md": "tests/mpi/test_own_pages.py",
    "docs/how-to/data.md": "tests/mpi/test_own_pages.py, and here",
    "README.md": "tests/mpi/test_own_pages.py, and here",
    "docs/how-to/from/lightning.md": "tests/mpi/test_own_pages.py",
    "docs/how-to/from/accelerate.md": "tests/mpi/test_own_pages.py",
    "docs/start/own-loop.md": "tests/mpi/test_start_pages.py",
    "docs/how-to/bring-your-own.md": "tests/integration/test_bring_your_own.py",
    "docs/how-to/tasks.md": "tests/unit/tasks/test_tasks.py",
    "docs/reference/python.md": "signatures, which docs/generate.py writes",
}
SMALL = ["--set", "train.epochs=1", "--set", "train.snapshots=2", "--ranks", "2"]
DEMO = str(launcher.ROOT / "experiments" / "demo" / "dpsgd.toml")


def blocks(page: str) -> list[str]:
    return [block.code for block in ALL if block.language == "python" and block.page == page]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the run files, the model file and the configuration of which pages speak."""
    folder = tmp_path_factory.mktemp("runs")
    model = str(folder / "mine.pt")
    assert main(["simulate", DEMO, *SMALL, "--out", str(folder / "mine.h5"), "--save", model]) == 0
    other = ["--set", "algorithm.name=local_sgd", "--out", str(folder / "other.h5")]
    assert main(["simulate", DEMO, *SMALL, *other]) == 0
    (folder / "results").mkdir()
    shutil.copy(folder / "mine.h5", folder / "results" / "demo-grsgd.h5")
    return folder


def run(page: str, **known) -> dict:
    """Run all blocks of a page with the names ``known``, and return the names after them."""
    found = blocks(page)
    assert found, page
    for number, code in enumerate(found):
        exec(compile(code, f"{page} {number}", "exec"), known)
    return known


def test_every_page_with_python_has_a_test():
    here = Path(__file__).read_text()
    for page in {block.page for block in ALL if block.language == "python"}:
        assert page in ELSEWHERE or f'"{page}"' in here, page


def test_run_files_are_read_drawn_and_turned_into_tables(runs, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(runs)
    for page in ("docs/start/first-run.md", "docs/reference/run-file.md", "docs/how-to/reports.md"):
        run(page)
    assert (runs / "both.pdf").exists() and "test_accuracy (2,) 1" in capsys.readouterr().out


def test_models_are_loaded(runs, monkeypatch):
    monkeypatch.chdir(runs)
    names = run("docs/how-to/models.md", grsgd=grsgd, torch=torch, images=torch.zeros(5, 1, 28, 28))
    assert names["logits"].shape == (5, 10)
    names["mlp"](torch.zeros(5, 1, 28, 28))
    assert [p.shape for p in names["mlp"].parameters()] == [p.shape for p in names["model"].parameters()]


def test_a_network_is_simulated_with_the_time_and_the_sum_of_the_page(capsys):
    run("docs/how-to/simulate.md")
    seconds, total = capsys.readouterr().out.split()
    assert float(seconds) == pytest.approx(0.096) and float(total) == 6


def test_studies_make_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in blocks("docs/how-to/studies.md"):
        libraries = re.findall(r"^import (optuna|hydra)$", code, re.MULTILINE)
        if all(importlib.util.find_spec(name) for name in libraries) and "hydra" not in libraries:
            exec(code.replace("n_trials=10", "n_trials=1"), names)
    assert names["run"].attributes["ranks"] == 64 and len(list(tmp_path.glob("results/*.h5"))) >= 2


def test_the_loop_with_trackers_runs(tmp_path):
    for library in ("wandb", "mlflow"):
        pytest.importorskip(library)
    (tmp_path / "train.py").write_text(blocks("docs/how-to/watching.md")[0])
    done = launcher.mpiexec(
        "openmpi", 2, ["train.py"], timeout=200, cwd=tmp_path, environment={"WANDB_MODE": "offline"}
    )
    assert done[0] == 0 and (tmp_path / "mine.h5").exists() and (tmp_path / "mlruns").exists(), done[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["README.md", "docs/start/own-algorithm.md"])
def test_algorithms_pass_the_tests_of_algorithms(page, tmp_path, monkeypatch):
    made = blocks(page)[1 if page == "README.md" else 0]
    (tmp_path / "mine.py").write_text(made)
    monkeypatch.chdir(tmp_path)
    tests = blocks("docs/start/own-algorithm.md")[1]
    (tmp_path / "test_mine.py").write_text(tests.replace("EveryStep", re.search(r"class (\w+)\(Algorithm", made)[1]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        capture_output=True,
        text=True,
        timeout=300,
        env=without_launcher(os.environ) | launcher.ENVIRONMENT,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


def test_a_loader_of_a_data_set_is_registered(monkeypatch):
    monkeypatch.setattr(data, "REGISTER", dict(data.REGISTER))
    exec(blocks("docs/how-to/data.md")[1], vars(data) | {"Path": Path})
    assert data.REGISTER["my-set"].classes == 10


def test_a_schedule_exchanges_arrays(capsys):
    names = {}
    exec(blocks("docs/reference/architecture.md")[0], names)
    code = blocks("docs/how-to/simulate.md")[0].replace("ring_allreduce(comm, x)", "exchanged(comm, x)")
    received = {}

    def exchanged(comm, x):
        received[comm.rank] = np.empty_like(x)
        yield from names["exchange"](comm, x, [(comm.rank + 1) % 4], {(comm.rank - 1) % 4: received[comm.rank]})

    exec(code, {"exchanged": exchanged})
    assert [array[0] for array in received.values()] == [3, 0, 1, 2]


def test_gradients_are_summed_by_coded_packets(tmp_path):
    (tmp_path / "coded.py").write_text(blocks("docs/reference/coding.md")[0])
    code, output = launcher.mpiexec("openmpi", 3, ["coded.py"], timeout=100, cwd=tmp_path)
    assert code == 0 and len(re.findall(r"\] 11\.50000000\d* 2000 4000$", output, re.MULTILINE)) == 3, output


def test_packets_and_tolerant_codes(tmp_path):
    _, packets, tolerant = blocks("docs/reference/coding.md")
    n, r, length = 4, 2, 60
    sums = []
    for rank in range(n):
        codec = Codec(packet_plan(n, r), rank, length)
        names = {"packet_plan": packet_plan, "Codec": Codec, "np": np, "n": n, "r": r, "rank": rank, "length": length}
        names |= {"content": np.zeros(codec.packet_length, np.int32), "accumulate": lambda *given: sums.append(given)}
        exec(packets, names)
        assert names["total"].shape == (length,)
    assert sums
    exec(tolerant, {"tolerant_code": tolerant_code, "n": 5, "r": 3, "silent": 1, "rank": 0, "senders": (0, 1, 2, 3)})


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="a testbed needs root")
def test_a_testbed_runs_a_command_on_each_host(tmp_path):
    (tmp_path / "script.py").write_text(blocks("docs/how-to/testbed.md")[0])
    environment = without_launcher(os.environ) | launcher.ENVIRONMENT
    script = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("Hello, World!") == 8 and "inet 10." in done.stdout, done
