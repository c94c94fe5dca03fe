"""Simulated networks and processors for runs, made from the measurements of ``grsgd calibrate``.

A calibration is one file with measurements for a model with its data, and for links of one rate. The network file of a
simulated run has all results of a calibration except the results of single ranks. A file of works has the measured
``work`` of each algorithm: the seconds of a step beyond the computation of the gradient. For each model there are
`CALIBRATIONS` calibrations and as many files of works, which are made at different times. The run with seed i uses the
measurements with the number i modulo `CALIBRATIONS`.
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
"""Greatest number of seconds for a calibration, and for a measurement of an algorithm's work."""
WORK_STEPS, REDUNDANT_STEPS = 14, 6
"""Numbers of training steps in which an algorithm's work is measured: without redundancy, and with redundancy.

``WORK_STEPS`` is the sum of four uncounted steps, the longest period between exchanges of models, and two steps. With
redundancy, ranks compute the gradients of up to n batches per step, so that fewer steps suffice.
"""
NO_MATTER = {"only_classes": None, "only_train": None, "only_test": None, "alpha": None, "replication": 1}
"""Options of the data, with their defaults, that do not affect the time of a step, because they only choose samples."""
ABOUT = ("where", "made", "commit")
"""Keys of a calibration file that state where, when and by which commit the calibration was made."""
OF_RANKS = ("link", "port")
"""Keys of a calibration about its own few ranks, as is ``compute.slowdown``. A run's network lacks these keys,
because a run has other and more hosts."""
OF_ONE_RATE = ("bandwidth", "latency", "queue_bytes")
"""Keys of a calibration file that depend on the rate of the links.

The network file of a run whose links have a stated rate lacks the keys `OF_ONE_RATE`. For example, the number of bytes
that wait in a sender's queue is smaller with slower links.
"""
CALIBRATION, WORK = ".measured.toml", ".work.toml"
"""Endings of the names of calibration files, and of files with the measured work of algorithms."""


class Measurement(NamedTuple):
    """A measurement for simulated times: a calibration, or the work of an algorithm if ``work`` names one."""

    file: Path
    work: str = ""


class Networks:
    """The calibrations and works in a folder; each is measured once and kept.

    on: the hosts on which missing calibrations are made. rate: rate of the links in calibrations for runs whose links
    have exactly a stated rate, and not a measured one.
    """

    def __init__(self, folder: Path, on: Hosts, rate: str = "1gbit"):
        self.folder, self.hosts, self.rate = folder, on, rate
        folder.mkdir(parents=True, exist_ok=True)

    # ---- methods that find the measurements for a run

    def calibration(self, spec: RunSpec) -> Path:
        """Return the path of the calibration from which the run's times are simulated."""
        return self._named(spec, f"{self.measured(spec).link.rate}-{number_of(spec) + 1}{CALIBRATION}")

    def measured(self, spec: RunSpec) -> RunSpec:
        """Return the specification of the run with the links that its calibration has."""
        return spec._replace(link=Link(self.rate)) if spec.link.nominal else spec

    def works(self, spec: RunSpec) -> Path:
        """Return the path of the file with the work of algorithms that belongs to the run's calibration."""
        return self._named(spec, f"{number_of(spec) + 1}{WORK}")

    def ranks_of_work(self, spec: RunSpec) -> int:
        """Return the number of ranks on which the work of the run's algorithm has to be measured.

        Without redundancy, the work is measured on as many ranks as a calibration. An algorithm with redundancy
        computes and encodes blocks of data, and the number of blocks depends on the number of ranks. The work of an
        algorithm with redundancy is therefore measured on as many ranks as the run has, up to the number of hosts.
        """
        return min(spec.ranks, self.hosts.count) if is_redundant(spec) else self.hosts.calibration_ranks

    def work_name(self, spec: RunSpec) -> str:
        """Return the run's key in the file of works: the algorithm's label and redundancy, and the number of ranks."""
        loaded, ranks = spec.load(), self.ranks_of_work(spec)
        redundancy = f" r={loaded.algorithm_options.r}" if is_redundant(spec) else ""
        return f"{loaded.traits.label}{redundancy} n={ranks}".replace(" ", "-")

    def work(self, spec: RunSpec) -> float | None:
        """Return the seconds of the algorithm's work; None if the measured ranks cannot train with it.

        Raises KeyError if the algorithm's work has not been measured.
        """
        return self._known_works(spec)[self.work_name(spec)].get("seconds")

    def missing(self, spec: RunSpec) -> set[Measurement]:
        """Return the measurements that do not exist yet and that the simulation of the run's times needs."""
        if spec.source not in (SIMULATED, TIMING_ONLY) or is_stated(spec):
            return set()
        calibration = {Measurement(self.calibration(spec))} if not self.calibration(spec).exists() else set()
        name = self.work_name(spec)
        return calibration | ({Measurement(self.works(spec), name)} if name not in self._known_works(spec) else set())

    def calibrations(self, specs: Iterable[RunSpec]) -> list[Path]:
        """Return the existing files of calibrations and works for the simulated runs in ``specs``."""
        simulated = [spec for spec in specs if spec.source in (SIMULATED, TIMING_ONLY) and not is_stated(spec)]
        files = {file for spec in simulated for file in (self.calibration(spec), self.works(spec))}
        return sorted(file for file in files if file.exists())

    def places(self, specs: Iterable[RunSpec]) -> list[str]:
        """Return texts that state where and when the calibrations for the simulated runs in ``specs`` were made."""
        times: dict[str, set[str]] = {}
        for file in self.calibrations(specs):
            if file.name.endswith(CALIBRATION):
                found = tomllib.loads(file.read_text())
                times.setdefault(found["where"], set()).add(found.get("made", ""))
        return [f"{where}{told(sorted(made - {''}))}" for where, made in sorted(times.items())]

    def _known_works(self, spec: RunSpec) -> dict[str, dict]:
        file = self.works(spec)
        return read(file, file.stat().st_mtime_ns) if file.exists() else {}

    # ---- methods that make measurements

    def calibrate(self, specs: Iterable[RunSpec], mpi_host: MpiHost):
        """Make the calibrations for the runs in ``specs`` in one MPI job; all of them have links of one rate.

        Raises Unfinished if a calibration fails twice.
        """
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

    def check_hosts(self, spec: RunSpec):
        """Raise Unfinished if existing calibrations of the run's model were made on hosts other than `hosts`.

        Only existing calibrations with the number of the run's calibration are checked. If calibrations came from
        different hosts, a comparison of algorithms or links would compare machines.
        """
        ending = f"-{number_of(spec) + 1}{CALIBRATION}"
        beginning = self._named(spec, "").name
        for file in sorted(self.folder.glob(f"{beginning}*{ending}")):
            rate = file.name.removeprefix(beginning).removesuffix(ending)
            here = self._about(spec._replace(link=Link(rate)))["where"]
            if (where := tomllib.loads(file.read_text())["where"]) != here:
                raise Unfinished(
                    f"{file}: was measured on {where}, and the hosts here are {here}: run the command on the "
                    "earlier hosts, or remove all calibrations of this model, so that they are made on the hosts here"
                )

    def _keep_calibration(self, spec: RunSpec, found: dict, file: Path):
        # without a testbed, the rate and latency of the wanted links replace the measured values
        nominal = {} if self.hosts.emulated else {"bandwidth": spec.link.rate, "latency": spec.link.latency}
        with atomic_write(file) as whole:
            whole.write_text(tomli_w.dumps(self._about(spec) | found | nominal))

    def measure_works(self, specs: Iterable[RunSpec], mpi_host: MpiHost):
        """Measure the work of the algorithms of the runs in ``specs``, in one MPI job per number of ranks.

        Raises Unfinished if a measurement fails twice.
        """
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
        """Write the seconds of work of the run's algorithm into the file of works."""
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

    # ---- methods for the network files of simulated runs

    def file(self, spec: RunSpec) -> Path:
        """Return the path of the run's network file for the simulator; write the file if it does not exist."""
        link, work = spec.link, [] if is_stated(spec) else [self.work_name(spec)]
        traits = {"multicast": link.multicast, "nominal": link.nominal, "stated": is_stated(spec)}
        latency = [link.latency] if link.latency != LATENCY else []
        traits_that_hold = (name for name, holds in traits.items() if holds)
        named = [link.rate, *latency, link.medium, *traits_that_hold, str(number_of(spec) + 1)]
        path = self._named(spec, "-".join([*named, *work]) + ".toml")
        if not path.exists():
            with atomic_write(path) as whole:  # simulations in other processes may write the same file
                whole.write_text(tomli_w.dumps(self.content(spec)))
        return path

    def content(self, spec: RunSpec) -> dict:
        """Return the content of a run's network file, which holds for any number of ranks.

        The network file has all results of the calibration except the results of single ranks. If the run's links have
        a stated rate, results that depend on the rate of the links are left out.
        """
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
    """Return the number of the calibration that a run uses, which is equal for all runs with one seed."""
    return occasion(spec.load().seed)


def is_redundant(spec: RunSpec) -> bool:
    """Return True if several ranks of a run may compute the same gradients."""
    return hasattr(spec.load().algorithm_options, "r")


def is_stated(spec: RunSpec) -> bool:
    """Return True if the run's links and computing times are both stated, and not measured.

    A run with stated links and computing times models hosts that do not exist here, for example GPUs of a cluster.
    In a run with stated links and computing times, messages take no processor time.
    """
    return spec.link.nominal and spec.compute is not None


@functools.lru_cache  # cached, because a command reads the files of thousands of runs
def read(file: Path, mtime: int) -> dict:
    """Return the content of a TOML file.

    ``mtime`` is the time of the file's last change, so that the cache reads a changed file anew.
    """
    return tomllib.loads(file.read_text())


def told(times: list[str]) -> str:
    """Return the times at which calibrations were made, as the end of a sentence; "" if ``times`` is empty."""
    return f", {times[0]} to {times[-1]}" if len(times) > 1 else "".join(f", {made}" for made in times)


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
