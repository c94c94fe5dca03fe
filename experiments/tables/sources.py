"""Where the times of runs come from: a testbed, a cluster or this machine as it is; and simulated time after them."""

import hashlib
import os
import platform
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w

from experiments.batch import Calibration, MpiHost, Training, make_runs
from experiments.cache import Unfinished, finished
from experiments.tables.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from grsgd.comm.driver import available_cores
from grsgd.files import atomic_write
from grsgd.mpi_environment import find_mpiexec
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import Run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate
from grsgd.testbed.hosts import Testbed, TestbedError, fair_share

CALIBRATION_SECONDS = 300
LAUNCH = Path(__file__).parents[2] / "slurm" / "launch.sh"
"""Starts ranks on the nodes of an allocation: their number, then the command."""
LATENCY = "50us"
"""Latency of simulated links where none was measured."""
STEP_BY_STEP = "1gbit,50us", "constant:1"
"""Network and processor where times mean nothing."""


class Hosts:
    """The machine that runs by the clock are made on, as it is.

    hosts, cpu: how many hosts a testbed has, and cores of each. why: the reason why there is no testbed.
    """

    emulated = False
    calibration_ranks = 2

    def __init__(self, hosts: int, cpu: float, why: str = ""):
        self.count, self.cpu, self.why = hosts, cpu, why
        self.description = (
            f"this machine as it is, {machine()}: neither link rates nor a processor for each rank could be emulated"
        )

    def describe(self, link: Link) -> str:
        """Return in words all that times depend on."""
        return self.description

    @contextmanager
    def connected(self, link: Link) -> Iterator[MpiHost]:
        """While inside, ranks that the function starts are joined by such links."""
        launcher = find_mpiexec()
        yield MpiHost(lambda words: [launcher, *words])

    def command(self, spec: RunSpec) -> str:
        """Return what a user types for the run."""
        return " ".join(["mpiexec -n", str(spec.ranks), "python -m grsgd train", *spec.cli_args()])


class Cluster(Hosts):
    """The nodes of a Slurm allocation, with its launcher, as slurm/tables.sbatch has chosen it."""

    calibration_ranks = 4

    def __init__(self, hosts: int, cpu: float):
        super().__init__(hosts, cpu)
        nodes, partition = os.environ["SLURM_JOB_NUM_NODES"], os.environ.get("SLURM_JOB_PARTITION")
        self.description = f"{nodes} nodes of a cluster, partition {partition}; links are as fast as they are"

    @contextmanager
    def connected(self, link: Link) -> Iterator[MpiHost]:
        yield MpiHost(lambda words: ["bash", str(LAUNCH), *words[1:]])


class EmulatedHosts(Hosts):
    """Hosts of a testbed."""

    emulated = True
    calibration_ranks = 4

    def describe(self, link: Link) -> str:
        return f"testbed of {self.count} hosts, {link.rate} links, {self.cpu:g} cores each, of {machine()}"

    @contextmanager
    def connected(self, link: Link) -> Iterator[MpiHost]:
        with Testbed(self.count, link.rate, self.cpu) as testbed:
            yield MpiHost(testbed.mpiexec, testbed.without_cpu_limit)

    def command(self, spec: RunSpec) -> str:
        options = f"--hosts {self.count} --rate {spec.link.rate} --cpu {self.cpu:g}"
        return f"grsgd testbed {options} -- " + super().command(spec).removeprefix("mpiexec ")


def hosts(count: int, cpu: float) -> Hosts:
    """Return the best there is: nodes of a cluster, a testbed, or this machine."""
    if int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) > 1:
        return Cluster(count, cpu)
    try:
        with Testbed(1, "1gbit", None):
            return EmulatedHosts(count, min(cpu, fair_share(count)))
    except TestbedError as error:
        return Hosts(count, cpu, str(error))


def machine() -> str:
    """Return the cores and the processor of this machine."""
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return f"{available_cores()} cores, {model[1] if model else platform.machine()}"


class Store:
    """The runs of a scale in a folder: where each lies, and how it is made."""

    def __init__(self, folder: Path, on: Hosts):
        self.runs, self.networks, self.hosts = folder / "runs", folder / "networks", on
        self.runs.mkdir(parents=True, exist_ok=True)
        self.networks.mkdir(exist_ok=True)

    # ---- where runs lie

    def path(self, spec: RunSpec) -> Path:
        if spec.source == MEASURED:
            where = self.hosts.describe(spec.link)
        else:
            where = str(STEP_BY_STEP) if spec.source == UNIT_STEPS else self.network_file(spec).read_text()
        return self.runs / f"{spec.name(where)}.h5"

    def find(self, spec: RunSpec) -> Run | None:
        """Return the run if it is there and has finished."""
        if spec.source in (SIMULATED, TIMING_ONLY) and not self.calibrated(spec):
            return None
        return finished_run(self.path(spec), {})

    def command(self, spec: RunSpec) -> str:
        """Return what a user types to make the run."""
        if spec.source == MEASURED:
            return self.hosts.command(spec)
        words = ["grsgd simulate", *spec.cli_args(), f"--ranks {spec.ranks}"]
        if spec.source == UNIT_STEPS:
            return " ".join([*words, "--compute", STEP_BY_STEP[1]])
        words += ["--network", str(self.network_file(spec)), *["--timing-only"] * (spec.source == TIMING_ONLY)]
        return " ".join(words)

    # ---- what simulated networks and processors are like

    def calibration(self, spec: RunSpec) -> Path:
        """Return the file with what ``grsgd calibrate`` measures for the run's model and data, and links of its
        rate."""
        loaded = spec.load()
        # a step takes as long with few classes
        data = loaded.data.model_copy(update={"only_classes": None, "alpha": None})
        content = f"{loaded.model!r} {data!r} {loaded.device} {loaded.dtype} {self.hosts.describe(spec.link)}"
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self.networks / f"{loaded.model.name}-{loaded.data.name}-{spec.link.rate}-{digest}.measured.toml"

    def computing(self, spec: RunSpec) -> Path:
        """Return the file with what the first of these calibrations measured of computing, whatever the links: a
        processor that is no other with other links."""
        any_links = self.calibration(spec._replace(link=Link("any")))
        return any_links.with_name(any_links.name.replace(".measured.toml", ".computing.toml"))

    def calibrated(self, spec: RunSpec) -> bool:
        return self.calibration(spec).exists() and self.computing(spec).exists()

    def calibrate(self, spec: RunSpec, mpi_host: MpiHost):
        """Calibrate. Raises Unfinished."""
        out = self.calibration(spec)
        what = [Calibration(str(spec.toml), list(spec.overrides), str(out))]
        list(make_runs(mpi_host, self.hosts.calibration_ranks, what, CALIBRATION_SECONDS))
        if not self.computing(spec).exists():
            self.computing(spec).write_text(tomli_w.dumps(tomllib.loads(out.read_text())["compute"]))

    def network_file(self, spec: RunSpec) -> Path:
        """Return the file of the run's network: the medians of what was measured, for any number of ranks."""
        measured = self.calibration(spec)
        kind = "-".join([spec.link.medium, *["multicast"] * spec.link.multicast])
        path = measured.with_name(measured.name.replace(".measured.toml", f"-{kind}.toml"))
        if not path.exists():
            found = tomllib.loads(measured.read_text())
            nominal = {} if self.hosts.emulated else {"bandwidth": spec.link.rate, "latency": LATENCY}
            content = {"medium": spec.link.medium, "multicast": spec.link.multicast}
            shared = ("bandwidth", "latency", "fairness", "seniority")
            content |= {key: found[key] for key in shared if key in found} | nominal
            compute = tomllib.loads(self.computing(spec).read_text())
            content["compute"] = {key: compute[key] for key in ("median", "sigma", "what")}
            path.write_text(tomli_w.dumps(content))
        return path

    # ---- making runs

    def simulate(self, spec: RunSpec):
        """Make a run in simulated time. Raises Unfinished, and leaves no file."""
        out = self.path(spec)
        with atomic_write(out) as partly:
            if spec.source == UNIT_STEPS:
                joined, compute = network(STEP_BY_STEP[0]), STEP_BY_STEP[1]
            else:
                joined, compute = network(str(self.network_file(spec))), None
            stopped = simulate(spec.load(), spec.ranks, joined, partly, compute, timing_only=spec.source == TIMING_ONLY)
            if not finished(stopped):
                raise Unfinished(f"{out.name}: {stopped}")

    def train(
        self, specs: list[RunSpec], mpi_host: MpiHost, run_timeout: float
    ) -> Iterator[tuple[RunSpec, str | None]]:
        """Make runs of one number of ranks on the clock; yields each when it is done, with what went wrong.

        run_timeout: seconds of one run.

        A run that fails ends its job; another one begins with the same run, and if it fails again, with the next one:
        launchers now and then fail by themselves.
        """
        left, failed = list(specs), None
        while left:
            runs = [Training(str(spec.toml), list(spec.overrides), str(self.path(spec))) for spec in left]
            try:
                for _ in make_runs(mpi_host, left[0].ranks, runs, run_timeout):
                    yield left.pop(0), None
            except Unfinished as error:
                if failed == left[0]:
                    yield left.pop(0), str(error)
                else:
                    failed = left[0]
