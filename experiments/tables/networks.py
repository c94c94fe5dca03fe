"""Simulated networks and processors, as ``grsgd calibrate`` has measured them."""

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path

import tomli_w

from experiments.batch import Calibration, MpiHost, make_each
from experiments.cache import Unfinished
from experiments.tables.hosts import Hosts
from experiments.tables.run_spec import SIMULATED, TIMING_ONLY, RunSpec
from grsgd.files import atomic_write

CALIBRATION_SECONDS = 300
LATENCY = "50us"
"""Latency of simulated links where none was measured."""
NO_MATTER = {"only_classes": None, "only_train": None, "only_test": None, "alpha": None, "replication": 1}
"""Keys that do not change how long a step takes: which samples there are."""
OF_LINKS = ("bandwidth", "latency", "queue_bytes", "fairness", "seniority")
OF_COMPUTING = ("median", "sigma", "what")


class Networks:
    """The calibrations in a folder, by model, data and rate of the links; the first one of each that is made is kept.

    on: where those that are missing are made.
    """

    def __init__(self, folder: Path, on: Hosts):
        self.folder, self.hosts = folder, on
        folder.mkdir(parents=True, exist_ok=True)

    def calibration(self, spec: RunSpec) -> Path:
        """Return the file with what was measured for the run's model and data, and links of its rate."""
        return self._named(spec, f"{spec.link.rate}.measured")

    def computing(self, spec: RunSpec) -> Path:
        """Return the file with what the first of these calibrations measured of computing, whatever the links: a
        processor that is no other with other links."""
        return self._named(spec, "computing")

    def calibrations(self, specs: Iterable[RunSpec]) -> list[Path]:
        """Return the files that were measured for these runs."""
        simulated = [spec for spec in specs if spec.source in (SIMULATED, TIMING_ONLY)]
        files = {file for spec in simulated for file in (self.calibration(spec), self.computing(spec))}
        return sorted(file for file in files if file.exists())

    def places(self, specs: Iterable[RunSpec]) -> list[str]:
        """Return in words on what was measured that simulated times of these runs rest on."""
        measured = [file for file in self.calibrations(specs) if file.name.endswith(".measured.toml")]
        return sorted({tomllib.loads(file.read_text())["where"] for file in measured})

    def missing(self, spec: RunSpec) -> set[Path]:
        """Return the calibration that a run needs and that is not there, if there is one."""
        if spec.source not in (SIMULATED, TIMING_ONLY) or self.calibrated(spec):
            return set()
        return {self.computing(spec) if spec.link.nominal else self.calibration(spec)}

    def calibrated(self, spec: RunSpec) -> bool:
        is_known = spec.compute is not None or self.computing(spec).exists()
        return is_known and (spec.link.nominal or self.calibration(spec).exists())

    def calibrate(self, spec: RunSpec, mpi_host: MpiHost):
        """Calibrate; raises Unfinished if it fails twice."""
        out = self.calibration(spec)
        with atomic_write(out) as whole:
            share = self.hosts.cpu if self.hosts.emulated else None
            what = [Calibration(str(spec.toml), list(spec.overrides), str(whole), share=share)]
            for _, error in make_each(mpi_host, self.hosts.calibration_ranks, what, CALIBRATION_SECONDS):
                if error:
                    raise Unfinished(f"calibration with links of {spec.link.rate}: {error}")
            found = tomllib.loads(whole.read_text())
            # where links could not be emulated, those that were measured are not the ones that are wanted
            nominal = {} if self.hosts.emulated else {"bandwidth": spec.link.rate, "latency": LATENCY}
            links = {key: found[key] for key in OF_LINKS if key in found} | nominal
            whole.write_text(tomli_w.dumps({"where": self.hosts.describe(spec._replace(slow_hosts=())), **links}))
        if not self.computing(spec).exists():
            with atomic_write(self.computing(spec)) as whole:
                whole.write_text(tomli_w.dumps({key: found["compute"][key] for key in OF_COMPUTING}))

    def file(self, spec: RunSpec) -> Path:
        """Return the file of the run's network: the medians of what was measured, for any number of ranks."""
        link = spec.link
        traits = {"multicast": link.multicast, "nominal": link.nominal, "stated": spec.compute is not None}
        path = self._named(spec, "-".join([link.rate, link.medium, *(name for name, holds in traits.items() if holds)]))
        if not path.exists():
            links = {"bandwidth": link.rate, "latency": LATENCY}
            if not link.nominal:
                links = tomllib.loads(self.calibration(spec).read_text())
                del links["where"]
            content = {"medium": link.medium, "multicast": link.multicast, **links}
            if spec.compute is None:
                content["compute"] = tomllib.loads(self.computing(spec).read_text())
            with atomic_write(path) as whole:  # simulations side by side
                whole.write_text(tomli_w.dumps(content))
        return path

    def _named(self, spec: RunSpec, kind: str) -> Path:
        loaded = spec.load()
        data = loaded.data.model_copy(update=NO_MATTER)
        digest = hashlib.sha256(f"{loaded.model!r} {data!r} {loaded.device} {loaded.dtype}".encode()).hexdigest()[:12]
        return self.folder / f"{loaded.model.name}-{loaded.data.name}-{digest}-{kind}.toml"
