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

from experiments.batch import Calibration, Place, Training, make
from experiments.cache import Unfinished, finished
from experiments.reproduce.cell import CLOCK, SIMULATED, STEPS, TIMES, Cell, Link
from experiments.testbed.hosts import Testbed, TestbedError, fair_part
from grsgd.calibrate import find_mpiexec
from grsgd.comm.driver import available_cores
from grsgd.results import Run, RunFileError, load_run
from grsgd.simulate.network import network
from grsgd.simulate.run import simulate

CALIBRATION_SECONDS = 300
LAUNCH = Path(__file__).parents[2] / "slurm" / "launch.sh"
"""Starts ranks on the nodes of an allocation: their number, then the command."""
LATENCY = "50us"
"""Of simulated links where none was measured."""
STEP_BY_STEP = {"text": "1gbit,50us", "topology": "switch"}, "constant:1"
"""Network and processor where times mean nothing."""


class Hosts:
    """What runs by the clock are made on: this machine as it is.

    hosts, cpu: how many hosts a testbed has, and cores of each. why: there is none.
    """

    emulated = False
    calibration_ranks = 2

    def __init__(self, hosts: int, cpu: float, why: str = ""):
        self.count, self.cpu, self.why = hosts, cpu, why
        self.words = (
            f"this machine as it is, {machine()}: neither link rates nor a processor for each rank could be emulated"
        )

    def describe(self, link: Link) -> str:
        """In words, and all that times depend on."""
        return self.words

    @contextmanager
    def joined(self, link: Link) -> Iterator[Place]:
        """While inside, ranks that the function starts are joined by such links."""
        launcher = find_mpiexec()
        yield Place(lambda words: [launcher, *words])

    def command(self, cell: Cell) -> str:
        """What a user types for the run."""
        return " ".join(["mpiexec -n", str(cell.ranks), "python -m grsgd train", *cell.words()])


class Cluster(Hosts):
    """The nodes of a Slurm allocation, with its launcher, as slurm/tables.sbatch has chosen it."""

    calibration_ranks = 4

    def __init__(self, hosts: int, cpu: float):
        super().__init__(hosts, cpu)
        nodes, partition = os.environ["SLURM_JOB_NUM_NODES"], os.environ.get("SLURM_JOB_PARTITION")
        self.words = f"{nodes} nodes of a cluster, partition {partition}; links are as fast as they are"

    @contextmanager
    def joined(self, link: Link) -> Iterator[Place]:
        yield Place(lambda words: ["bash", str(LAUNCH), *words[1:]])


class EmulatedHosts(Hosts):
    """Hosts of a testbed."""

    emulated = True
    calibration_ranks = 4

    def describe(self, link: Link) -> str:
        return f"testbed of {self.count} hosts, {link.rate} links, {self.cpu:g} cores each, of {machine()}"

    @contextmanager
    def joined(self, link: Link) -> Iterator[Place]:
        with Testbed(self.count, link.rate, self.cpu) as testbed:
            yield Place(testbed.mpiexec, testbed.unlimited)

    def command(self, cell: Cell) -> str:
        options = f"--hosts {self.count} --rate {cell.link.rate} --cpu {self.cpu:g}"
        return f"python -m experiments.testbed {options} -- " + super().command(cell).removeprefix("mpiexec ")


def hosts(count: int, cpu: float) -> Hosts:
    """The best there is: nodes of a cluster, a testbed, or this machine."""
    if int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) > 1:
        return Cluster(count, cpu)
    try:
        with Testbed(1, "1gbit", None):
            return EmulatedHosts(count, min(cpu, fair_part(count)))
    except TestbedError as error:
        return Hosts(count, cpu, str(error))


def machine() -> str:
    """Cores and processor of this one."""
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return f"{available_cores()} cores, {model[1] if model else platform.machine()}"


class Store:
    """The runs of a scale in a folder: where each lies, and how it is made."""

    def __init__(self, folder: Path, on: Hosts):
        self.runs, self.networks, self.on = folder / "runs", folder / "networks", on
        self.runs.mkdir(parents=True, exist_ok=True)
        self.networks.mkdir(exist_ok=True)

    # ---- where runs lie

    def path(self, cell: Cell) -> Path:
        if cell.source == CLOCK:
            where = self.on.describe(cell.link)
        else:
            where = str(STEP_BY_STEP) if cell.source == STEPS else self.network_file(cell).read_text()
        return self.runs / f"{cell.name(where)}.h5"

    def find(self, cell: Cell) -> Run | None:
        """The run if it is there and has finished."""
        if cell.source in (SIMULATED, TIMES) and not self.calibrated(cell):
            return None
        try:
            run = load_run(self.path(cell))
        except RunFileError:
            return None
        return run if finished(run.attributes["stopped"]) else None

    def command(self, cell: Cell) -> str:
        """What a user types to make the run."""
        if cell.source == CLOCK:
            return self.on.command(cell)
        words = ["grsgd simulate", *cell.words(), f"--ranks {cell.ranks}"]
        if cell.source == STEPS:
            return " ".join([*words, "--compute", STEP_BY_STEP[1]])
        words += ["--topology", str(self.network_file(cell)), *["--timing-only"] * (cell.source == TIMES)]
        return " ".join(words)

    # ---- what simulated networks and processors are like

    def calibration(self, cell: Cell) -> Path:
        """The file with what `grsgd calibrate` measures for the cell's model and data, and links of its rate."""
        loaded = cell.load()
        # a step takes as long with few classes
        data = loaded.data.model_copy(update={"only_classes": None, "alpha": None})
        content = f"{loaded.model!r} {data!r} {loaded.device} {loaded.dtype} {self.on.describe(cell.link)}"
        digest = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self.networks / f"{loaded.model.name}-{loaded.data.name}-{cell.link.rate}-{digest}.measured.toml"

    def computing(self, cell: Cell) -> Path:
        """The file with what the first of these calibrations measured of computing, whatever the links: a processor
        that is no other with other links."""
        any_links = self.calibration(cell._replace(link=Link("any")))
        return any_links.with_name(any_links.name.replace(".measured.toml", ".computing.toml"))

    def calibrated(self, cell: Cell) -> bool:
        return self.calibration(cell).exists() and self.computing(cell).exists()

    def calibrate(self, cell: Cell, place: Place):
        """Measure it. Raises Unfinished."""
        out = self.calibration(cell)
        what = [Calibration(str(cell.toml), list(cell.overrides), str(out))]
        list(make(place, self.on.calibration_ranks, what, CALIBRATION_SECONDS))
        if not self.computing(cell).exists():
            self.computing(cell).write_text(tomli_w.dumps(tomllib.loads(out.read_text())["compute"]))

    def network_file(self, cell: Cell) -> Path:
        """The cell's network: the medians of what was measured, for any number of ranks."""
        measured = self.calibration(cell)
        kind = "-".join([cell.link.medium, *["multicast"] * cell.link.multicast])
        path = measured.with_name(measured.name.replace(".measured.toml", f"-{kind}.toml"))
        if not path.exists():
            found = tomllib.loads(measured.read_text())
            nominal = {} if self.on.emulated else {"bandwidth": cell.link.rate, "latency": LATENCY}
            content = {"medium": cell.link.medium, "multicast": cell.link.multicast}
            content |= {key: found[key] for key in ("bandwidth", "latency", "seniority") if key in found} | nominal
            compute = tomllib.loads(self.computing(cell).read_text())
            content["compute"] = {key: compute[key] for key in ("median", "sigma", "what")}
            path.write_text(tomli_w.dumps(content))
        return path

    # ---- making runs

    def simulate(self, cell: Cell):
        """Make a run in simulated time. Raises Unfinished, and leaves no file."""
        out = self.path(cell)
        partly = out.with_suffix(".part")
        try:
            if cell.source == STEPS:
                joined, compute = network(**STEP_BY_STEP[0]), STEP_BY_STEP[1]
            else:
                joined, compute = network(None, str(self.network_file(cell))), None
            stopped = simulate(cell.load(), cell.ranks, joined, partly, compute, timing_only=cell.source == TIMES)
            if not finished(stopped):
                raise Unfinished(f"{out.name}: {stopped}")
            os.replace(partly, out)
        finally:
            partly.unlink(missing_ok=True)

    def train(self, cells: list[Cell], place: Place, longest: float) -> Iterator[tuple[Cell, str | None]]:
        """Make runs of one number of ranks on the clock; yields each when it is done, with what went wrong.

        longest: seconds of one run.

        A run that fails ends its job; another one begins with the same run, and if it fails again, with the next one:
        launchers now and then fail by themselves.
        """
        left, failed = list(cells), None
        while left:
            runs = [Training(str(cell.toml), list(cell.overrides), str(self.path(cell))) for cell in left]
            try:
                for _ in make(place, left[0].ranks, runs, longest):
                    yield left.pop(0), None
            except Unfinished as error:
                if failed == left[0]:
                    yield left.pop(0), str(error)
                else:
                    failed = left[0]
