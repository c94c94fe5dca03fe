"""`grsgd.testing`: our own algorithms pass its tests, and those that are wrong do not."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
import pytest

from grsgd.algorithms import ALGORITHMS
from grsgd.simulator.driver import Deadlock
from grsgd.testing import AlgorithmTests
from tests.support.exhaustive import exhaustive_unless

OPTIONS = {
    "cssgd": {"r": 1},
    "decoupled": {"H": 4, "outer_momentum": 0.3},
    "diloco": {"H": 4, "outer_momentum": 0.3},  # the default swings for longer than these few steps
    "local_sgd": {"H": 4},
    "noloco": {"H": 4},
    "parameter_server": {"strategy": "ssp"},
}
ON_REAL_RANKS = ("test_real_ranks_do_what_simulated_ones_do", "test_it_goes_on_from_a_checkpoint")
SIMULATED = [name for name in vars(AlgorithmTests) if name.startswith("test_") and name not in ON_REAL_RANKS]
SOME = ("dpsgd", "grsgd", "ring_allreduce", "parameter_server")
DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "bring-your-own.md"
WRONG = """
import numpy as np
from grsgd.algorithms.dpsgd import DPSGD


class TooMuch(DPSGD, name="too_much"):
    def step(self):
        yield from super().step()
        self.x.array[:] *= 1.01


class Drifts(DPSGD, name="drifts"):
    def step(self):
        yield from super().step()
        self.x.array[:] += 1e-3 * np.random.default_rng().standard_normal(self.x.array.size)


class Stops(DPSGD, name="stops"):
    def step(self):
        if self.comm.rank == 1 and self.k == 3:
            yield self.comm.Irecv(self.x.array, 0, 77)
        yield from super().step()


class Leaves(DPSGD, name="leaves"):
    def step(self):
        yield from super().step()
        if self.comm.rank == 0 and self.k == 3:
            yield self.comm.Isend(self.x.array.copy(), 1, 77)


class Hurries(DPSGD, name="hurries"):
    def step(self):
        if self.driver.clock() % 2e-3 < 1e-3:
            self.x.array[:] *= 0.99
        yield from super().step()
"""


def kit(name: str, **attributes) -> AlgorithmTests:
    return type("Tests", (AlgorithmTests,), {"algorithm": name, "options": OPTIONS.get(name, {}), **attributes})()


@pytest.mark.parametrize("test", SIMULATED)
@pytest.mark.parametrize("name", exhaustive_unless(lambda name: name in SOME, sorted(ALGORITHMS)))
def test_ours_pass(name, test):
    try:
        getattr(kit(name, orders=2), test)()
    except unittest.SkipTest:
        assert test != "test_it_trains" or name in ("cssgd", "ssgd")


def test_means_and_mixing_matrices():
    def ring(n, step):
        return np.mean([np.roll(np.eye(n), shift, 0) for shift in {-1 % n, 0, 1 % n}], 0)

    kit("dpsgd", mixing_matrix=staticmethod(ring), mixes_first=True).test_it_is_what_its_mixing_matrices_make()
    mean = staticmethod(lambda n, step: np.full((n, n), 1 / n) if step % 4 == 3 else np.eye(n))
    kit("local_sgd", mixing_matrix=mean).test_it_is_what_its_mixing_matrices_make()
    for name in ("dpsgd", "grsgd", "gosgd"):
        kit(name, keeps_mean=True).test_the_mean_of_all_models_is_kept()


@pytest.fixture
def wrong(tmp_path, monkeypatch):
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    return lambda name, **attributes: kit(f"wrong.py:{name}", orders=2, ranks=(3,), **attributes)


@pytest.mark.parametrize(
    ("name", "test", "words"),
    [
        ("TooMuch", "test_the_mean_of_all_models_is_kept", "3 ranks: the mean has moved by"),
        ("Drifts", "test_a_run_is_repeated_exactly", "3 ranks: two runs of one seed differ"),
        ("Stops", "test_no_order_of_messages_or_steps_stops_it", "rank 1"),
        ("Leaves", "test_all_steps_are_taken_and_nothing_is_left", "messages, or receives, are left at the end"),
        ("Hurries", "test_synchronous_ranks_do_not_depend_on_times", "the models depend on how long"),
    ],
)
def test_what_is_wrong_is_found(wrong, name, test, words):
    with pytest.raises((AssertionError, Deadlock), match=words):
        getattr(wrong(name, keeps_mean=True), test)()


def test_what_trains_too_slowly_is_told_the_limit_and_what_sets_it():
    words = "expected less than 4e-09, the part distance = 1e-09 of the 4 at the start: .* set `distance` in"
    with pytest.raises(AssertionError, match=words):
        kit("dpsgd", ranks=(3,), distance=1e-9).test_it_trains()


def test_the_documented_test(tmp_path):
    """Its few lines, for the documented algorithm, by pytest itself from another folder; nothing under mpiexec."""
    document, folder = DOCUMENT.read_text(), tmp_path / "mine"
    folder.mkdir()
    beginnings = {"test_mine.py": "from grsgd.testing import", "mine.py": "import numpy as np\n\nfrom grsgd.alg"}
    for name, begin in beginnings.items():
        (folder / name).write_text(re.search(rf"```python\n({begin}.*?)```", document, re.DOTALL)[1])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not real and not checkpoint"]
    done = subprocess.run([*command, "mine/test_mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
