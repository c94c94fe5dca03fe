"""Simulated networks and processors, as ``grsgd calibrate`` has measured them.

A calibration is one file, of a model, its data and links of one rate. It keeps all that ``grsgd calibrate`` has written
but what is of single ranks. Beside it is measured what a step of each algorithm takes more than a gradient, its
``work``. There are `CALIBRATIONS` of each, made at different times; the run with seed i rests on number i modulo that.
"""

import functools
import hashlib
import json
import tempfile
import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import tomli_w

from experiments.runner.batch import Calibration, MpiHost, Work, make_each
from experiments.runner.hosts import Hosts
from experiments.runner.occasions import occasion
from experiments.runner.parallel import Unfinished
from experiments.runner.run_spec import LATENCY, SIMULATED, TIMING_ONLY, Link, RunSpec
from grsgd.files import atomic_write
from grsgd.training.description import commit

CALIBRATION_SECONDS, WORK_SECONDS = 300, 300
"""The most that a calibration and a measurement of the work may take."""
WORK_STEPS, REDUNDANT_STEPS = 14, 6
"""Steps that an algorithm trains for, to measure its work, and one whose ranks compute the gradients of up to n batches
in a step: after the four that do not count, the longest period after which ranks exchange models, and two steps."""
NO_MATTER = {"only_classes": None, "only_train": None, "only_test": None, "alpha": None, "replication": 1}
"""Keys that do not change how long a step takes: which samples there are."""
ABOUT = ("where", "made", "commit")
"""Keys of a kept calibration that say how it was made."""
OF_RANKS = ("link", "port")
"""Keys that a calibration has of its own few ranks, and ``compute.slowdown``: hosts of a run are others, and more."""
OF_ONE_RATE = ("bandwidth", "latency", "queue_bytes")
"""Keys that links of a rate which was not measured cannot have from a calibration with another rate. With slower links
less of a message waits in its sender's queue."""
CALIBRATION, WORK = ".measured.toml", ".work.toml"


class Measurement(NamedTuple):
    """A base of simulated times: a calibration, or, if named, an algorithm's work. file: its place on the disk."""

    file: Path
    work: str = ""


class Networks:
    """The calibrations in a folder; those that are there are kept.

    on: where those that are missing are made. rate: of the links with which a processor is measured whose links are
    not.
    """

    def __init__(self, folder: Path, on: Hosts, rate: str = "1gbit"):
        self.folder, self.hosts, self.rate = folder, on, rate
        folder.mkdir(parents=True, exist_ok=True)

    # ---- what is measured

    def calibration(self, spec: RunSpec) -> Path:
        """Return the file of the calibration that the run rests on."""
        return self._named(spec, f"{self.measured(spec).link.rate}-{number_of(spec) + 1}{CALIBRATION}")

    def measured(self, spec: RunSpec) -> RunSpec:
        """Return the run with the links with which its calibration is made."""
        return spec._replace(link=Link(self.rate)) if spec.link.nominal else spec

    def works(self, spec: RunSpec) -> Path:
        """Return the file with the work of algorithms that was measured beside these calibrations."""
        return self._named(spec, f"{number_of(spec) + 1}{WORK}")

    def ranks_of_work(self, spec: RunSpec) -> int:
        """Return on how many ranks the work of the run's algorithm is measured: those of a calibration, but where
        redundant ranks compute and code blocks, whose number goes by that of the ranks, its own, if there are hosts."""
        return min(spec.ranks, self.hosts.count) if is_redundant(spec) else self.hosts.calibration_ranks

    def work_name(self, spec: RunSpec) -> str:
        """Return the name of the run's algorithm among the works: its label, and the redundancy if it has one."""
        loaded, ranks = spec.load(), self.ranks_of_work(spec)
        redundancy = f" r={loaded.algorithm_options.r}" if is_redundant(spec) else ""
        return f"{loaded.traits.label}{redundancy} n={ranks}".replace(" ", "-")

    def work(self, spec: RunSpec) -> float | None:
        """Return the seconds of the work; None where so many ranks cannot train by it. Raises KeyError if missing."""
        return self._known_works(spec)[self.work_name(spec)].get("seconds")

    def missing(self, spec: RunSpec) -> set[Measurement]:
        """Return what simulated times of the run rest on and is not there."""
        if spec.source not in (SIMULATED, TIMING_ONLY) or is_stated(spec):
            return set()
        calibration = {Measurement(self.calibration(spec))} if not self.calibration(spec).exists() else set()
        name = self.work_name(spec)
        return calibration | ({Measurement(self.works(spec), name)} if name not in self._known_works(spec) else set())

    def calibrations(self, specs: Iterable[RunSpec]) -> list[Path]:
        """Return the files that were measured for these runs."""
        simulated = [spec for spec in specs if spec.source in (SIMULATED, TIMING_ONLY) and not is_stated(spec)]
        files = {file for spec in simulated for file in (self.calibration(spec), self.works(spec))}
        return sorted(file for file in files if file.exists())

    def places(self, specs: Iterable[RunSpec]) -> list[str]:
        """Return in words on what, and when, was measured what simulated times of these runs rest on."""
        times: dict[str, set[str]] = {}
        for file in self.calibrations(specs):
            if file.name.endswith(CALIBRATION):
                found = tomllib.loads(file.read_text())
                times.setdefault(found["where"], set()).add(found.get("made", ""))
        return [f"{where}{told(sorted(made - {''}))}" for where, made in sorted(times.items())]

    def _known_works(self, spec: RunSpec) -> dict[str, dict]:
        file = self.works(spec)
        return read(file, file.stat().st_mtime_ns) if file.exists() else {}

    # ---- measuring

    def calibrate(self, specs: Iterable[RunSpec], mpi_host: MpiHost):
        """Calibrate what these runs rest on, with links of one rate, in a job; raises Unfinished if one fails twice."""
        by_file = {self.calibration(spec): spec for spec in specs}
        share = self.hosts.cpu if self.hosts.emulated else None
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            jobs = [
                Calibration(str(spec.toml), list(spec.overrides), str(Path(folder) / file.name), share=share)
                for file, spec in by_file.items()
            ]
            made = make_each(mpi_host, self.hosts.calibration_ranks, jobs, CALIBRATION_SECONDS)
            for (file, spec), (job, error) in zip(by_file.items(), made, strict=True):
                if error:
                    raise Unfinished(f"calibration with links of {spec.link.rate}: {error}")
                self._keep_calibration(spec, tomllib.loads(Path(job.out).read_text()), file)

    def _keep_calibration(self, spec: RunSpec, found: dict, file: Path):
        # where links could not be emulated, those that were measured are not the ones that are wanted
        nominal = {} if self.hosts.emulated else {"bandwidth": spec.link.rate, "latency": spec.link.latency}
        with atomic_write(file) as whole:
            whole.write_text(tomli_w.dumps(self._about(spec) | found | nominal))

    def measure_works(self, specs: Iterable[RunSpec], mpi_host: MpiHost):
        """Measure the work of the runs' algorithms, in one job for each number of ranks; raises Unfinished if one
        fails twice."""
        named = {(self.works(spec), self.work_name(spec)): spec for spec in specs}
        for ranks, alike in groupby(sorted(named.values(), key=self.ranks_of_work), key=self.ranks_of_work):
            self._measure_works(list(alike), ranks, mpi_host)

    def _measure_works(self, specs: list[RunSpec], ranks: int, mpi_host: MpiHost):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            files = [Path(folder) / f"{index}.json" for index in range(len(specs))]
            steps = [REDUNDANT_STEPS if is_redundant(spec) else WORK_STEPS for spec in specs]
            jobs = [
                Work(str(spec.toml), list(spec.overrides), str(file), count)
                for spec, file, count in zip(specs, files, steps, strict=True)
            ]
            made = make_each(mpi_host, ranks, jobs, WORK_SECONDS)
            for spec, file, (_, error) in zip(specs, files, made, strict=True):
                if error:
                    raise Unfinished(f"work of {spec.load().algorithm.name}: {error}")
                self.keep_work(spec, json.loads(file.read_text()))

    def keep_work(self, spec: RunSpec, seconds: float | None):
        """Write down the work of the run's algorithm."""
        entry = {"made": now()} | ({} if seconds is None else {"seconds": float(f"{seconds:.4g}")})
        works = self._known_works(spec) | {self.work_name(spec): entry}
        with atomic_write(self.works(spec)) as whole:
            whole.write_text(tomli_w.dumps(works))

    def _about(self, spec: RunSpec) -> dict[str, str]:
        return {
            "where": self.hosts.describe(spec._replace(slow_hosts=())),
            "made": now(),
            "commit": str(commit()),
        }

    # ---- networks of runs

    def file(self, spec: RunSpec) -> Path:
        """Return the file of the run's network."""
        link, work = spec.link, [] if is_stated(spec) else [self.work_name(spec)]
        traits = {"multicast": link.multicast, "nominal": link.nominal, "stated": is_stated(spec)}
        latency = [link.latency] if link.latency != LATENCY else []
        traits_that_hold = (name for name, holds in traits.items() if holds)
        named = [link.rate, *latency, link.medium, *traits_that_hold, str(number_of(spec) + 1)]
        path = self._named(spec, "-".join([*named, *work]) + ".toml")
        if not path.exists():
            with atomic_write(path) as whole:  # simulations side by side
                whole.write_text(tomli_w.dumps(self.content(spec)))
        return path

    def content(self, spec: RunSpec) -> dict:
        """Return the run's network, for any number of ranks: all that was measured, but what is of single ranks, and,
        of links that were not measured, what such links cannot have in common with others."""
        traits = {"medium": spec.link.medium, "multicast": spec.link.multicast}
        nominal = {"bandwidth": spec.link.rate, "latency": spec.link.latency}
        if is_stated(spec):
            return traits | nominal
        found = tomllib.loads(self.calibration(spec).read_text())
        left_out = {*ABOUT, *OF_RANKS, *(OF_ONE_RATE if spec.link.nominal else ())}
        kept = {key: value for key, value in found.items() if key not in left_out}
        kept["compute"] = {key: value for key, value in found["compute"].items() if key not in ("slowdown", "work")}
        if (seconds := self.work(spec)) is not None:
            kept["compute"]["work"] = seconds
        return traits | (nominal if spec.link.nominal else {}) | kept

    def _named(self, spec: RunSpec, kind: str) -> Path:
        loaded = spec.load()
        data = loaded.data.model_copy(update=NO_MATTER)
        digest = hashlib.sha256(f"{loaded.model!r} {data!r} {loaded.device} {loaded.dtype}".encode()).hexdigest()[:12]
        return self.folder / f"{loaded.model.name}-{loaded.data.name}-{digest}-{kind}"


def number_of(spec: RunSpec) -> int:
    """Return which calibration a run rests on: those with the same seed, which are compared, rest on the same one."""
    return occasion(spec.load().seed)


def is_redundant(spec: RunSpec) -> bool:
    """Return whether several ranks of a run may compute the same gradients."""
    return hasattr(spec.load().algorithm_options, "r")


def is_stated(spec: RunSpec) -> bool:
    """Return whether both links and computing are said and not measured: a model of no host, as on a cluster's GPUs,
    whose messages take nothing of a processor."""
    return spec.link.nominal and spec.compute is not None


@functools.lru_cache  # runs are looked for by the thousand
def read(file: Path, mtime: int) -> dict:
    """Return the content of a file as it was at that time."""
    return tomllib.loads(file.read_text())


def told(times: list[str]) -> str:
    """Return in words when calibrations were made; empty if that is not known."""
    return f", {times[0]} to {times[-1]}" if len(times) > 1 else "".join(f", {made}" for made in times)


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
