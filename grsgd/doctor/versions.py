"""Facts and findings about the versions of grsgd, Python and libraries, some of which must be equal on all ranks."""

import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

from grsgd import __version__
from grsgd.doctor.findings import Finding, by_ranks

GROUP = "versions"
PACKAGES = ("torch", "numpy", "mpi4py", "h5py", "cupy-cuda12x", "cupy-cuda13x", "lightning")
"""Names of the Python packages whose versions are shown if they are installed."""
SAME_EVERYWHERE = ("grsgd", "torch", "numpy", "mpi4py", "Python")
"""Names of the packages and programs whose versions must be equal on all ranks."""


class VersionFacts(NamedTuple):
    """Versions on one rank: a dictionary from the name of a program or package to its version."""

    versions: dict[str, str]


def facts() -> VersionFacts:
    """Return the versions of the packages and programs on this host, without importing the packages."""
    found = {"grsgd": __version__, "Python": f"{platform.python_version()}, {sys.executable}"}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    libc = " ".join(platform.libc_ver()).strip()
    found["system"] = f"{platform.system()} {platform.release()} {platform.machine()}, {libc or 'C library unknown'}"
    container = "SINGULARITY_NAME" in os.environ or os.path.exists("/.dockerenv") or "APPTAINER_NAME" in os.environ
    return VersionFacts(found | ({"container": "yes"} if container else {}))


def findings(ranks: Sequence[VersionFacts]) -> list[Finding]:
    """Return the findings about the versions on all ranks."""
    found = []
    for name in dict.fromkeys(name for of_rank in ranks for name in of_rank.versions):
        values = [of_rank.versions.get(name, "not installed") for of_rank in ranks]
        differ = name in SAME_EVERYWHERE and len(set(values)) > 1
        remedy = "use one environment for all ranks, on a file system that all hosts share" if differ else ""
        found.append(Finding(GROUP, name, by_ranks(values), remedy))
    return found
