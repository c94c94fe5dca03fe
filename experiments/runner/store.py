"""The store of a scale's runs: finds the run files in a folder by their specifications, and makes runs."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.runner import code as of_today
from experiments.runner import records
from experiments.runner.batch import MpiHost, Training, make_each
from experiments.runner.hosts import Hosts
from experiments.runner.networks import Networks
from experiments.runner.parallel import Unfinished, is_finished
from experiments.runner.run_spec import MEASURED, TIMING_ONLY, UNIT_STEPS, RunSpec
from grsgd.config.sources import DIGEST_LETTERS
from grsgd.files import atomic_write
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import Run
from grsgd.simulator.network import network
from grsgd.simulator.run import simulate

STEP_BY_STEP = "1gbit,50us", "constant:1"
"""Network and computing time of simulated runs whose times mean nothing (``UNIT_STEPS``)."""
NAMED = re.compile(rf"-([0-9a-f]{{{of_today.LETTERS}}})-[0-9a-f]{{{DIGEST_LETTERS}}}\.h5$")
"""Pattern for the end of a run file's name; its group is the digest of the code that made the run."""


class Store:
    """The runs of a scale (size of the experiment) in one folder that one version of the code has made.

    is_joined: True if measured runs and calibrations of other machines are used, which ``records.unpack`` has copied
    into the folder. If ``is_joined`` is true, simulated runs of all machines have the same networks and processors,
    and the same names. code: the digest of the code in the names of the runs; None for the code as it is now. Only the
    code as it is now can make runs.
    """

    def __init__(self, folder: Path, on: Hosts, is_joined: bool = False, code: str | None = None):
        self.folder, self.runs, self.hosts, self.is_joined = folder, folder / "runs", on, is_joined
        self.runs.mkdir(parents=True, exist_ok=True)
        self.code = of_today.digest_code() if code is None else code
        mine = hashlib.sha256(on.place.encode()).hexdigest()[:12]
        networks = records.NETWORKS if is_joined else Path("networks") / mine
        self.networks = Networks(folder / networks / self.code, on)
        self.places: list[str] = records.places(folder) if is_joined else []

    def with_code(self, code: str) -> "Store":
        """Return the store of the runs in this folder that the code with the digest ``code`` has made."""
        return Store(self.folder, self.hosts, self.is_joined, code)

    def other_codes(self) -> list[str]:
        """Return the digests of the other versions of the code that have made runs in this folder."""
        named = (NAMED.search(file.name) for file in self.runs.glob("*.h5"))
        return sorted({found[1] for found in named if found} - {self.code})

    @property
    def emulated(self) -> bool:
        """Return True if measured runs with emulated links and processors exist, or this machine can make them."""
        return self.hosts.emulated or bool(self.places)

    # ---- methods that find runs

    def path(self, spec: RunSpec) -> Path:
        if spec.source == MEASURED:
            where = self.hosts.describe(spec)
        else:
            where = str(STEP_BY_STEP) if spec.source == UNIT_STEPS else self.networks.file(spec).read_text()
            where += spec.compute or ""
        return self.runs / f"{spec.name(where, self.code)}.h5"

    def find(self, spec: RunSpec) -> Run | None:
        """Return the run of a specification if it exists and has finished, else None."""
        if self.networks.missing(spec):
            return None
        return finished_run(self.path(spec))

    def place(self, specs: list[RunSpec]) -> str:
        """Return the machine on which all runs of ``specs`` were measured, according to the records.

        Returns "" for the machine of this process. Measured runs that are compared must come from one machine. If no
        recorded machine has made all runs of ``specs``, they have to be made on this machine.
        """
        for place in ("", *self.places):
            if all(self.path(spec._replace(place=place)).exists() for spec in specs):
                return place
        return ""

    def command(self, spec: RunSpec) -> str:
        """Return the shell command by which a user can repeat the run."""
        if spec.source == MEASURED:
            return self.hosts.command(spec)
        words = ["grsgd simulate", *spec.cli_args(), f"--ranks {spec.ranks}"]
        if spec.source == UNIT_STEPS:
            return " ".join([*words, "--compute", STEP_BY_STEP[1]])
        words += ["--network", str(self.networks.file(spec)), *["--timing-only"] * (spec.source == TIMING_ONLY)]
        words += [f"--compute {spec.compute}"] * bool(spec.compute)
        return " ".join(words)

    # ---- methods that make runs

    def simulate(self, spec: RunSpec):
        """Make a simulated run; if the run fails, raise Unfinished, and leave no run file."""
        out = self.path(spec)
        with atomic_write(out) as partly:
            if spec.source == UNIT_STEPS:
                joined, compute = network(STEP_BY_STEP[0]), STEP_BY_STEP[1]
            else:
                joined, compute = network(str(self.networks.file(spec))), spec.compute
            stopped = simulate(spec.load(), spec.ranks, joined, partly, compute, timing_only=spec.source == TIMING_ONLY)
            if not is_finished(stopped):
                raise Unfinished(f"{out.name}: {stopped}")

    def train(
        self, specs: list[RunSpec], mpi_host: MpiHost, run_timeout: float
    ) -> Iterator[tuple[RunSpec, str | None]]:
        """Make measured runs, all on equally many ranks.

        Yields each run when it is done, with its error message or None.

        run_timeout: greatest number of seconds of one run.
        """
        runs = [Training(str(spec.toml), list(spec.overrides), str(self.path(spec))) for spec in specs]
        made = make_each(mpi_host, specs[0].ranks, runs, run_timeout)
        for spec, (_, error) in zip(specs, made, strict=True):
            yield spec, error
