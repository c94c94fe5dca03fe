"""What lies in a folder of the user's: one file with model, data, task, algorithm and more, on ranks and in simulated
time; and a language model, by ``grsgd train`` and by a loop of one's own."""

import re

import numpy as np
import pytest
import torch

import grsgd
from grsgd.algorithms import ALGORITHMS
from grsgd.testing import AlgorithmTests
from tests.support import launcher

DOCUMENT = launcher.ROOT / "docs" / "how-to" / "bring-your-own.md"
ALGORITHM = """

from grsgd.algorithms.dpsgd import DPSGD


class Mine(DPSGD, name="mine"):
    paper = "my own"
"""
GPT = {
    "model": {"name": "gpt", "layers": 1, "heads": 2, "width": 16},
    "data": {"name": "text", "block": 128},
    "task": {"name": "language_modelling"},
}


@pytest.fixture
def grsgd_in(tmp_path):
    """Runs ``grsgd`` in a folder of its own, on some ranks of Open MPI or on one; returns what it prints."""

    def run(*arguments, ranks: int = 1) -> str:
        words = ["-m", "grsgd", *arguments]
        code, output = launcher.mpiexec("openmpi", ranks, words, timeout=120, cwd=tmp_path)
        assert code == 0, output
        return output

    return run


def test_a_folder_with_one_file(tmp_path, grsgd_in):
    text = DOCUMENT.read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(import numpy.*?)```", text, re.DOTALL)[1] + ALGORITHM)
    toml = re.search(r"```toml\n(.*?)```", text, re.DOTALL)[1].replace('"dpsgd"', '"mine.py:Mine"')
    (tmp_path / "run.toml").write_text(toml)
    whole = "run.toml", "--set", "train.steps=12"
    kept = "--checkpoint", "kept", "--every", "5"
    grsgd_in("train", *whole, *kept, "--out", "whole.h5", "--save", "whole.pt", ranks=3)
    grsgd_in("train", *whole, "--resume", "kept", "--out", "again.h5", "--save", "again.pt", ranks=3)
    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert grsgd.load_run(tmp_path / "again.h5").attributes["resumed"] == 10 * 3 * 8
    grsgd_in("simulate", *whole, "--ranks", "32", "--out", "simulated.h5")
    report = grsgd_in("report", "whole.h5", "simulated.h5")
    assert "final error [%]" in report and "mine.py:clusters/mine.py:Net" in report
    grsgd_in("plot", "whole.h5", "simulated.h5", "-o", "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 10_000


def test_a_language_model_by_train_and_by_a_loop(tmp_path, grsgd_in):
    text = np.random.default_rng(0).choice([97, 98, 99, 32], 60_000, p=[0.7, 0.1, 0.1, 0.1]).astype(np.uint8)
    (tmp_path / "input.txt").write_bytes(text.tobytes())
    settings = [f"{section}.{key}={value}" for section, keys in GPT.items() for key, value in keys.items()]
    settings += ["data.dir=.", "data.batch_size=8", "train.steps=30", "train.target=1.4", "schedule.warmup=0.1"]
    demo, words = launcher.ROOT / "experiments" / "demo", [word for one in settings for word in ("--set", one)]
    grsgd_in("train", demo / "gpt.toml", *words, "--out", "train.h5", ranks=2)
    sizes = "--layers 1 --heads 2 --width 16 --batch 8 --steps 30".split()
    script = [demo / "nanogpt.py", "--text", "input.txt", "--out", "loop.h5", *sizes]
    code, output = launcher.mpiexec("openmpi", 2, script, timeout=120, cwd=tmp_path)
    assert code == 0, output
    for name, metric in (("train", "bits_per_byte"), ("loop", "nats")):
        attributes = grsgd.load_run(tmp_path / f"{name}.h5").attributes
        assert attributes["metric"] == metric and attributes[f"final_test_{metric}"] < 7
    report = grsgd_in("report", "train.h5", "loop.h5")
    assert "final bits per byte" in report and "text/gpt" in report
    assert "local_sgd" in report and "ring_allreduce" in report


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dpsgd", "ring_allreduce", "grsgd"])
def test_the_kit_on_real_ranks(name):
    assert name in ALGORITHMS
    tests = type("Tests", (AlgorithmTests,), {"algorithm": name, "ranks": (3,)})()
    tests.test_real_ranks_do_what_simulated_ones_do()
    tests.test_it_goes_on_from_a_checkpoint()
