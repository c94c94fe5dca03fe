"""Every algorithm on a GPU that all ranks share, against the same run on the CPU: on MPI, and in simulated time.

In simulated time asynchronous algorithms do the same on every run, so that their arithmetic can be compared too. On MPI
they end as well as on the CPU, and the weights of those that have weights sum to n: they check that themselves.
"""

import pytest

from grsgd.runs.run_file import load_run
from grsgd.simulator.network import NetworkSpec
from grsgd.simulator.run import simulate
from tests.gpu.on_ranks import on_ranks, same_curves
from tests.gpu.train_all import demos, small

pytestmark = pytest.mark.gpu

TRANSFERS = ("staged", "ipc", "direct")
NAMES = [demo.stem for demo in demos()]


@pytest.fixture(scope="session", params=[2, 4])
def folder(request, tmp_path_factory):
    """The run files of all algorithms on so many ranks, by every transfer, and on the CPU."""
    folder = tmp_path_factory.mktemp(f"{request.param}-ranks")
    for device, transfers in (("cpu", ["auto"]), ("cuda", TRANSFERS)):
        on_ranks(request.param, "train_all.py", device, folder, *transfers)
    return folder


def test_no_memory_is_exchanged_behind_our_back():
    """After a broadcast and steps on two ranks, all views are where they were."""
    on_ranks(2, "addresses.py", *TRANSFERS)


@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("name", NAMES)
def test_on_mpi(folder, name, transfer):
    skipped = folder / f"{transfer}.skipped"
    if skipped.exists():
        pytest.skip(skipped.read_text())
    on_cpu, on_gpu = (load_run(folder / f"{way}-{name}.h5") for way in ("auto", transfer))
    assert on_gpu.attributes["device"] == "cuda"
    assert on_gpu.attributes["transfer"] == transfer
    config = config_of(name)
    if config.algorithm_class.traits.synchronous:
        # Of steps without late ranks: losses are of those that computed, and the late get what others do not.
        late = config.traits.tolerates_silent_ranks
        same_curves(on_cpu, on_gpu, but="train_loss" if late else None)
        if on_cpu.curve["consensus_distance"].max() == 0:
            assert on_gpu.curve["consensus_distance"].max() == 0, "not identical bit for bit"
        assert late or (on_gpu.traffic["sent"] == on_cpu.traffic["sent"]).all()
    else:
        assert on_gpu.curve["test_accuracy"][-1] > on_cpu.curve["test_accuracy"][-1] - 0.2  # with so few samples


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_in_simulated_time(name, ranks, tmp_path):
    demo = next(demo for demo in demos() if demo.stem == name)
    runs = []
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.h5"
        simulate(small(demo, device), ranks, NetworkSpec(bandwidth="1gbit", latency="50us"), out)
        runs.append(load_run(out))
    same_curves(*runs)


def config_of(name: str):
    return small(next(demo for demo in demos() if demo.stem == name), "cpu")
