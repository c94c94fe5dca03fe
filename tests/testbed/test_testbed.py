"""Hosts, links and shares of the processor that are what they were asked to be, and gone afterwards."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from experiments.runner.batch import MpiHost, Training, make_runs
from experiments.runner.parallel import Unfinished
from experiments.validation.rates import BYTES_PER_SECOND, MIB, shares_of_the_wire, spin
from grsgd.mpi_environment import job_environment
from grsgd.runs.run_file import load_run
from grsgd.simulator.calibration.calibrate import MIN_QUEUE_BYTES
from grsgd.simulator.network import network
from grsgd.testbed import hosts, links, quota
from grsgd.testbed.__main__ import main
from grsgd.testbed.hosts import STATE, Testbed, TestbedError
from tests.support.launcher import start_command

ROOT = Path(__file__).parents[2]
RUN = """
[algorithm]
name = "ring_allreduce"
[model]
name = "mlp"
hidden = [64]
[data]
name = "synthetic"
samples = 2000
shape = [1, 28, 28]
[train]
steps = 40
snapshots = 1
[comm]
timeout = 60
"""
SAY_NAME = ("sh", "-c", "hostname; sleep 0.5")
"""Open MPI's launcher may wait for ever for a program that has ended before all hosts have begun theirs."""
COUNTED = [
    'name="ring_allreduce"',
    'variant="halving-doubling"',
    'variant="tree"',
    'variant="mpi"',
    'name="dpsgd"',
    'name="grsgd"',
]
"""Algorithms whose traffic is compared; the variants are those of ring_allreduce."""
SELDOM = COUNTED[1:3]
MORE = {'name="grsgd"': ["train.steps=600"]}
"""It sends fewer models a step, and the average after training is on the interfaces, too."""


@pytest.fixture(scope="module")
def machine():
    """One that can have a testbed."""
    try:
        with Testbed(hosts=1, cpu=0.5) as testbed:
            testbed.mpiexec([])
    except TestbedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def testbed(machine):
    with Testbed(hosts=4, rate="100mbit") as testbed:
        yield testbed


def output(command: list, seconds: float = 100) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command, env=job_environment(), cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def start(*words) -> subprocess.Popen:
    """``python -m grsgd.testbed words``, as from a terminal."""
    return start_command(
        [sys.executable, "-m", "grsgd.testbed", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def name_in(said: str) -> str | None:
    """The testbed whose hosts have said their names."""
    found = re.search(r"^(tb\d+)-\d+$", said, re.MULTILINE)
    return found and found[1]


def traces(name: str) -> list[str]:
    """What there is of a testbed: folders, namespaces, control groups, and processes that are in them."""
    found = [STATE / name, *hosts.NAMESPACES.glob(f"{name}-*"), *quota.parent().glob(f"grsgd-{name}-*")]
    return [str(path) for path in found if path.exists()]


# ---- the network


@pytest.fixture(scope="module")
def runs(request, testbed, tmp_path_factory):
    """A run of each algorithm of `COUNTED` that is to be tested, by what distinguishes it."""
    chosen = {item.callspec.params.get("what") for item in request.session.items if hasattr(item, "callspec")}
    folder = tmp_path_factory.mktemp("counted")
    (folder / "run.toml").write_text(RUN)
    todo = {}
    for number, what in enumerate(what for what in COUNTED if what in chosen):
        overrides = [f"algorithm.{what}", *MORE.get(what, [])]
        todo[what] = Training(str(folder / "run.toml"), overrides, str(folder / f"{number}.h5"))
    for _ in make_runs(
        MpiHost(testbed.mpiexec, testbed.without_cpu_limit), testbed.count, list(todo.values()), run_timeout=60
    ):
        pass
    return {what: load_run(run.out) for what, run in todo.items()}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.exhaustive] * (what in SELDOM)) for what in COUNTED]
)
def test_counted_payload_is_what_the_interfaces_count(testbed, runs, what):
    run = runs[what]
    payload = run.traffic["sent"] + run.traffic["headers"]
    interfaces = run.traffic["interface"]
    assert run.attributes["hosts"] == testbed.hosts
    assert payload.sum() > 30 * run.attributes["model_bytes"], "too little to compare"
    for counted, seen in ((payload.sum(axis=1), interfaces[:, 0]), (payload.sum(axis=0), interfaces[:, 1])):
        if "mpi" in what:  # a tree: ranks send unequally, which only the library knows
            counted, seen = counted.sum(keepdims=True), seen.sum(keepdims=True)
        assert (abs(seen / counted - 1) < 0.06).all(), (what, seen / counted)


def test_a_link_lets_no_more_through_than_its_rate(testbed):
    """How much less it lets through is measured by ``make validate-simulator``, for other load decides that, too."""
    (share,) = shares_of_the_wire(testbed, [MIB], links=4).values()
    assert 0 < share.mean < 1.05


def test_a_shared_medium_lets_no_more_through_than_its_rate(machine):
    with Testbed(hosts=4, rate="100mbit", medium="shared") as testbed:
        before = testbed.counters()
        (share,) = shares_of_the_wire(testbed, [MIB], links=1).values()
        sent = (testbed.counters() - before)[:, 0]
    assert 0 < share.mean < 1.05
    assert np.ptp(sent) < 0.05 * sent.mean()  # nobody sends on what was meant for others


@pytest.mark.exhaustive
def test_headers_of_small_frames_take_part_of_the_rate(machine):
    with Testbed(hosts=2, rate="100mbit", mtu=1500) as testbed:
        (share,) = shares_of_the_wire(testbed, [4 * MIB], links=2).values()
    assert 0 < share.mean < 0.97


def test_a_delay_is_there_or_refused_in_one_line(machine):
    try:
        with Testbed(hosts=2, rate="100mbit", delay="20ms") as testbed:
            (share,) = shares_of_the_wire(testbed, [262144], links=2).values()
            assert 262144 / BYTES_PER_SECOND / share.mean > 0.04  # two messages, one after the other
    except TestbedError as error:
        assert "netem" in str(error) and "\n" not in str(error)


@pytest.mark.exhaustive
def test_calibrating_finds_no_more_than_the_rate(testbed, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    words = ["-m", "grsgd", "calibrate", tmp_path / "run.toml", "--out", tmp_path / "network.toml"]
    output(testbed.mpiexec(["-n", 4, sys.executable, *words]), seconds=300)  # a minute alone
    spec = network(str(tmp_path / "network.toml"))
    assert 0.2 < spec.bandwidth / BYTES_PER_SECOND < 1.02
    assert 2000 < spec.queue_bytes < MIN_QUEUE_BYTES / 2


# ---- the processor


def test_a_host_gets_no_more_of_the_processor_than_its_share(machine):
    with Testbed(hosts=2, cpu=0.6, slow={1: 3.0}) as testbed:
        fast, slow = spin(testbed)
    assert slow < 1.2 * 5 * 0.2 + 0.1 and fast < 1.2 * 5 * 0.6 + 0.1


def test_hosts_are_unlimited_for_a_while(machine):
    def limits():
        names = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
        groups = (quota.parent() / hosts.group_of(host) for host in testbed.hosts)
        files = (group / name for group in groups for name in names)
        return [file.read_text().split() for file in files if file.exists()]

    with Testbed(hosts=2, cpu=0.5, slow={1: 2.0}) as testbed:
        before = limits()
        with pytest.raises(KeyError), testbed.without_cpu_limit():
            assert sum("max" in limit or "-1" in limit for limit in limits()) == 2
            raise KeyError
        assert limits() == before
    assert not any("max" in limit or "-1" in limit for limit in before)


# ---- nothing is left behind


def test_after_success(machine):
    job = start("--hosts", 2, "--cpu", 0.5, "--", "-n", 2, *SAY_NAME)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0, said
    name = name_in(said)
    assert {f"{name}-0", f"{name}-1"} <= set(said.splitlines())
    assert "sent [MiB]" in said
    assert traces(name) == []


def test_after_failure(machine):
    job = start("--hosts", 2, "--cpu", 0.5, "--", "-n", 2, "sh", "-c", "hostname; sleep 0.5; exit 3")
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 3, said
    assert traces(name_in(said)) == []


@pytest.fixture
def sleeping(machine):
    """A testbed on which two ranks sleep, and its name."""
    job = start("--hosts", 2, "--cpu", 0.5, "--", "-n", 2, "sh", "-c", "hostname; exec sleep 1000")
    try:
        name = next(filter(None, map(name_in, job.stdout)))  # mpiexec may have warnings to say first
        assert traces(name)
        yield job, name
    finally:
        if job.poll() is None:
            job.terminate()
        job.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal(sleeping, number):
    job, name = sleeping
    pids = sleepers(name)
    if number == signal.SIGINT:
        os.killpg(job.pid, number)  # as a terminal does
    else:
        job.send_signal(number)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 128 + number, said
    assert traces(name) == [] and not any(map(alive, pids))


def test_after_kill(sleeping):
    """Nobody need start another one: what waits for the owner's end clears up."""
    job, name = sleeping
    pids = sleepers(name)
    job.kill()
    job.wait(10)
    deadline = time.monotonic() + 60
    while traces(name) or any(map(alive, pids)):
        assert time.monotonic() < deadline, traces(name)
        time.sleep(0.1)


@pytest.mark.parametrize("command", [True, False], ids=["command", "next testbed"])
def test_after_all_was_killed(sleeping, command, monkeypatch, capsys):
    job, name = sleeping
    pids = sleepers(name)
    with hosts.only_one():  # no testbed of another process clears up first
        monkeypatch.setattr(hosts, "only_one", nullcontext)
        for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
            if "--clear" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(int(pid), signal.SIGKILL)
        job.kill()
        job.wait(10)
        assert traces(name)
        if command:
            main(["--clear"])
            assert name in capsys.readouterr().out.splitlines()
        else:
            with Testbed(hosts=1):
                pass
        assert traces(name) == [] and not any(map(alive, pids))


def test_two_side_by_side(testbed, sleeping):
    _, name = sleeping
    with Testbed(hosts=2) as third:
        assert len({testbed.name, name, third.name}) == 3
        assert sorted(output(third.mpiexec(["-n", 2, *SAY_NAME])).split()) == third.hosts
    assert traces(name) and traces(testbed.name) and not traces(third.name)


def sleepers(name: str) -> list[int]:
    """The processes on the hosts of a testbed; there must be some."""
    deadline = time.monotonic() + 10
    while not (found := [pid for index in (0, 1) for pid in links.processes(f"{name}-{index}")]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# ---- what is refused, in one line


def test_without_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match="needs root"):
        Testbed().__enter__()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--hosts", 0, "--", "x"], "hosts = 0; allowed: 1 to 200"),
        (["--rate", "100", "--", "x"], "no unit"),
        (["--slow", "4:2", "--", "x"], "slow host 4; allowed: 0 to 3"),
        (["--slow", "1:0.5", "--", "x"], "slow by 0.5; allowed: 1 or more"),
        (["--cpu", "1000", "--", "x"], "1000 cores"),
        (["--slow", "one", "--", "x"], "'one' is not HOST:FACTOR"),
        (["--hosts", 2], "nothing to run"),
    ],
)
def test_what_is_refused(words, message, capsys):
    try:
        code = main(list(map(str, words)))
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code == 2 and message in said, said


# ---- several runs in one job


def test_a_job_of_several_runs_that_fails_says_why(testbed, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    runs = [
        Training(str(tmp_path / "run.toml"), ["train.steps=2"], str(tmp_path / "one.h5")),
        Training(str(tmp_path / "run.toml"), ['algorithm.name="none"'], str(tmp_path / "two.h5")),
    ]
    made = []
    with pytest.raises(Unfinished, match="^two.h5: grsgd: error: .*algorithm.name.*$"):
        for run in make_runs(MpiHost(testbed.mpiexec, testbed.without_cpu_limit), 2, runs, run_timeout=60):
            made.append(run)
    assert made == runs[:1] and load_run(runs[0].out).attributes["reason"] == "steps"
    assert [path.name for path in tmp_path.glob("*.h5")] == ["one.h5"]


def test_hosts_are_slow_while_ranks_train_and_at_no_other_time(testbed, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    run = Training(str(tmp_path / "run.toml"), ["train.steps=2"], str(tmp_path / "one.h5"))
    fast = []

    @contextmanager
    def without_limit():
        began = time.perf_counter()
        with testbed.without_cpu_limit():
            yield
        fast.append((began, time.perf_counter()))

    list(make_runs(MpiHost(testbed.mpiexec, without_limit), 2, [run], run_timeout=60))
    (_, slow_from), (slow_to, _), _ = fast  # as they load, as they compute accuracies, as they end
    assert slow_to - slow_from >= load_run(run.out).attributes["wall_seconds"]
