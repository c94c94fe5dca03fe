"""The configurations in experiments/demo train, on few ranks and on many: here at a small scale, in simulated time."""

from pathlib import Path

import pytest

import grsgd
from grsgd.config import load
from grsgd.errors import ConfigError
from grsgd.runs.measures import best
from grsgd.simulator.network import NetworkSpec
from grsgd.simulator.run import simulate
from tests.support.exhaustive import exhaustive_unless

FOLDER = Path(__file__).parents[4] / "experiments" / "demo"
SMALL = [
    "data.name=synthetic",
    "data.samples=600",
    "data.shape=[1, 16, 16]",
    "model.hidden=[16]",
    "train.snapshots=5",
    "train.evaluate_replicas=false",
]
OF_TEXT = ("gpt", "base")
"""gpt.toml needs a text, and takes minutes; base.toml is what others are based on."""
DEMOS = sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem not in OF_TEXT)
NETWORK = NetworkSpec(bandwidth="10 gbit", latency="1 us")


QUICK = ("diloco", "decoupled", "noloco", "grsgd")
"""With an outer step, or ours: tried on two ranks in `make test`."""


def trained(name: str, ranks: int, folder: Path, *settings: str) -> grsgd.Run:
    """Return the simulated run of a demo; skips what needs other numbers of ranks."""
    config = load(FOLDER / f"{name}.toml", [*SMALL, *settings])
    try:
        config.check_ranks(ranks)
    except ConfigError:
        pytest.skip(f"not on {ranks} ranks")
    simulate(config, ranks, NETWORK, folder / "run.h5", compute="constant:0.01")
    run = grsgd.load_run(folder / "run.h5")
    assert run.attributes["ended"] == "completed"
    return run


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_begins_to_train(tmp_path, name):
    assert best(trained(name, 2, tmp_path, "train.epochs=3")) > 0.4  # by chance it is 0.1


@pytest.mark.parametrize(
    ("name", "ranks"),
    exhaustive_unless(
        lambda name, ranks: ranks == 2 and name in QUICK, [(name, n) for name in DEMOS for n in range(1, 9)]
    ),
)
def test_a_demo_trains_to_its_end(tmp_path, name, ranks):
    run = trained(name, ranks, tmp_path, f"train.epochs={5 * max(ranks, 2)}")  # many steps on each rank
    final = run.attributes["final_test_accuracy"]
    assert final > 0.85 and final > best(run) - 0.05


def test_a_small_gpt_can_be_checked(tmp_path):
    (tmp_path / "text").mkdir()
    config = load(FOLDER / "gpt.toml", ["data.name=text", f"data.dir={tmp_path}", "train.steps=1", "train.snapshots=1"])
    (tmp_path / "input.txt").write_text("To be, or not to be, that is the question. " * 200)
    simulate(config, 2, NETWORK, tmp_path / "run.h5", compute="constant:0.01")
    assert grsgd.load_run(tmp_path / "run.h5").attributes["final_test_bits_per_byte"] > 0
