"""Records: the run files that tables and figures are made of, and the calibrations that simulated times rest on, packed
to lie in the repository, so that a page can be made without training, and pieces made on several machines are joined.

In ``docs/results/SCALE``: an archive of run files for each paper, ``networks`` and ``places.json``, a list of what runs
by the clock were made on. The same runs give the same bytes.
"""

import io
import json
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

from grsgd.files import atomic_write

NETWORKS = Path("networks/joined")
"""The calibrations of a folder that machines share."""
ARCHIVE = ".tar.xz"
PLACES = "places.json"
OF_CALIBRATIONS = ("*.measured.toml", "*-computing.toml")


def unpack(recorded: Path, folder: Path):
    """Put what is recorded of a scale into the folder of its runs, where it is not there; calibrations replace others,
    and runs in simulated time that rest on those are not found any more."""
    for archive in sorted(recorded.glob(f"*{ARCHIVE}")):
        with tarfile.open(archive) as packed:
            missing = [member for member in packed if not (folder / "runs" / member.name).exists()]
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.2 does not have
            packed.extractall(folder / "runs", missing)
    (folder / NETWORKS).mkdir(parents=True, exist_ok=True)
    for file in _calibrations(recorded / "networks"):
        there = folder / NETWORKS / file.name
        if there.exists() and there.read_bytes() != file.read_bytes():
            shutil.rmtree(folder / NETWORKS)  # with the networks that were made of it
            return unpack(recorded, folder)
        shutil.copyfile(file, there)
    if (recorded / PLACES).exists():
        shutil.copyfile(recorded / PLACES, folder / NETWORKS / PLACES)


def places(folder: Path) -> list[str]:
    """Return what the runs by the clock that were unpacked were made on."""
    file = folder / NETWORKS / PLACES
    return json.loads(file.read_text()) if file.exists() else []


def record(recorded: Path, runs: dict[str, Iterable[Path]], calibrations: Iterable[Path], made_on: Iterable[str]):
    """Replace the records of a scale.

    runs: the run files, by the paper whose tables are made of them. made_on: where runs by the clock were made.
    """
    networks = recorded / "networks"
    networks.mkdir(parents=True, exist_ok=True)
    content = {networks / file.name: file.read_bytes() for file in calibrations}
    content |= {recorded / f"{paper}{ARCHIVE}": packed(files) for paper, files in runs.items()}
    content[recorded / PLACES] = (json.dumps(sorted(set(made_on)), indent=2) + "\n").encode()
    for old in {*_calibrations(networks), *recorded.glob(f"*{ARCHIVE}")} - content.keys():
        old.unlink()
    for path, data in content.items():
        with atomic_write(path) as whole:
            whole.write_bytes(data)


def packed(files: Iterable[Path]) -> bytes:
    """Return an archive of files, without what differs from machine to machine."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for file in sorted(set(files), key=lambda file: file.name):
            member = tarfile.TarInfo(file.name)
            member.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(member, content)
    return archive.getvalue()


def _calibrations(folder: Path) -> list[Path]:
    return sorted(file for pattern in OF_CALIBRATIONS for file in folder.glob(pattern))

