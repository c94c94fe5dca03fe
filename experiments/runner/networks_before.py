"""Networks of runs that were recorded when networks did not yet keep all results of a calibration.

These networks have no processor times of messages, no work of algorithms, and a single calibration, whose computing
times serve for links of all rates. They are not used for new runs.
"""

import tomllib
from pathlib import Path

import tomli_w

from experiments.runner.networks import Measurement, Networks
from experiments.runner.run_spec import LATENCY, SIMULATED, TIMING_ONLY, RunSpec
from grsgd.files import atomic_write

MEASURED, COMPUTING = ".measured.toml", "-computing.toml"


class NetworksBefore(Networks):
    """The networks of a folder with calibrations of the earlier kind."""

    def calibration(self, spec: RunSpec) -> Path:
        return self._named(spec, f"{spec.link.rate}{MEASURED}")

    def works(self, spec: RunSpec) -> Path:
        """Return the file with the measured computing times."""
        return self._named(spec, COMPUTING.removeprefix("-"))

    def missing(self, spec: RunSpec) -> set[Measurement]:
        if spec.source not in (SIMULATED, TIMING_ONLY):
            return set()
        needed = [] if spec.link.nominal else [self.calibration(spec)]
        needed += [] if spec.compute is not None else [self.works(spec)]
        return {Measurement(file) for file in needed if not file.exists()}

    def file(self, spec: RunSpec) -> Path:
        link = spec.link
        traits = {"multicast": link.multicast, "nominal": link.nominal, "stated": spec.compute is not None}
        named = [link.rate, link.medium, *(name for name, holds in traits.items() if holds)]
        path = self._named(spec, "-".join(named) + ".toml")
        if not path.exists():
            with atomic_write(path) as whole:
                whole.write_text(tomli_w.dumps(self.content(spec)))
        return path

    def content(self, spec: RunSpec) -> dict:
        links = {"bandwidth": spec.link.rate, "latency": LATENCY}
        if not spec.link.nominal:
            links = tomllib.loads(self.calibration(spec).read_text())
            del links["where"]
        content = {"medium": spec.link.medium, "multicast": spec.link.multicast, **links}
        if spec.compute is None:
            content["compute"] = tomllib.loads(self.works(spec).read_text())
        return content
