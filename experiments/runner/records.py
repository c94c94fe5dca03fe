"""Records: the run files behind tables and figures, with their calibrations, as archives in the repository.

With records, a page can be made anew without training, and results from several machines can be joined.
The folder ``docs/results/SCALE`` has an archive of run files per paper, the folder ``networks``, and ``places.json``,
a list of the machines of measured runs. The same run files always give an archive with the same bytes.
"""

import io
import json
import lzma
import re
import shutil
import tarfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import tomli_w

from experiments.runner.networks import CALIBRATION, WORK
from grsgd.errors import ConfigError
from grsgd.files import atomic_write
from grsgd.runs.numbers import human_bytes
from grsgd.text import printable

NETWORKS = Path("networks/joined")
"""Folder for calibrations that several machines share, relative to the folder of a scale (size of the experiment)."""
ARCHIVE = ".tar.xz"
PLACES = "places.json"
"""Name of the file that lists the machines of measured runs."""
MAX_BYTES = 2**28
"""Greatest allowed number of bytes of an unpacked archive.

The largest archive in the repository has 60 million bytes.
"""
PLAIN = re.compile(r"\w[\w .,=+@-]*\.h5")
"""Pattern that the name of a run file in an archive must match."""
OF_CALIBRATIONS = f"*{CALIBRATION}", f"*{WORK}"
"""Patterns for the names of calibration files, and of files with algorithms' work."""


def unpack(recorded: Path, folder: Path):
    """Copy recorded runs and calibrations into ``folder``, the folder of a scale (size of the experiment).

    Run files that already exist in the folder are not overwritten. If a measurement in the folder differs from the
    recorded one (of a calibration, or of an algorithm's work), the recorded one replaces it. Runs that were simulated
    from a replaced measurement are no longer found. Measurements of algorithms' work that only the folder has are kept.
    """
    for archive in sorted(recorded.glob(f"*{ARCHIVE}")):
        for name, content in files_in(archive):
            if not (folder / "runs" / name).exists():
                (folder / "runs").mkdir(parents=True, exist_ok=True)
                with atomic_write(folder / "runs" / name) as whole:
                    whole.write_bytes(content)
    (folder / NETWORKS).mkdir(parents=True, exist_ok=True)
    for file in _calibrations(recorded / "networks"):
        _unpack_calibration(file, folder / NETWORKS / file.relative_to(recorded / "networks"))
    if (recorded / PLACES).exists():
        shutil.copyfile(recorded / PLACES, folder / NETWORKS / PLACES)


def _unpack_calibration(file: Path, there: Path):
    """Copy a recorded calibration to ``there``.

    If the file ``there`` changes, the network files that were made from calibrations are removed.
    """
    content = file.read_bytes()
    if there.exists():
        old, content = there.read_bytes(), _with_works_there(content, there)
        if content == old:
            return
        made_of_them = set(there.parent.glob("*.toml")) - set(_calibrations(there.parent))
        for network in made_of_them:
            network.unlink()
    there.parent.mkdir(exist_ok=True)
    with atomic_write(there) as whole:
        whole.write_bytes(content)


def _with_works_there(content: bytes, there: Path) -> bytes:
    """Return the content of a recorded file.

    If the recorded file has the work of algorithms, the work that only the file ``there`` has is added.
    """
    if not there.name.endswith(WORK):
        return content
    recorded, works = tomllib.loads(content.decode()), tomllib.loads(there.read_text())
    return content if works.keys() <= recorded.keys() else tomli_w.dumps(works | recorded).encode()


def files_in(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in an archive.

    Raises ConfigError before anything is yielded if the archive has more than `MAX_BYTES` bytes, or has anything
    except plain files with plain names.
    """
    try:
        content = lzma.LZMADecompressor().decompress(archive.read_bytes(), MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{archive}: holds more than {human_bytes(MAX_BYTES)}")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            members = tar.getmembers()
            for member in members:
                if member.type != tarfile.REGTYPE or not PLAIN.fullmatch(member.name):
                    what = printable(member.name, 100)
                    raise ConfigError(f"{archive}: {what!r} is not a plain file with a plain name, NAME.h5")
            yield from [(member.name, tar.extractfile(member).read()) for member in members]
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise ConfigError(f"{archive}: not an archive of records: {error}") from None


def places(folder: Path) -> list[str]:
    """Return the machines on which the measured runs were made that have been unpacked into ``folder``."""
    file = folder / NETWORKS / PLACES
    return json.loads(file.read_text()) if file.exists() else []


def names(recorded: Path) -> set[str]:
    """Return the names of all run files in the archives of the folder ``recorded``."""
    return {name for archive in recorded.glob(f"*{ARCHIVE}") for name, _ in files_in(archive)}


def record(
    recorded: Path, runs: dict[str, Iterable[Path]], calibrations: dict[str, Iterable[Path]], made_on: Iterable[str]
):
    """Replace the archives of runs and the calibrations in ``recorded``, a scale's folder in the repository.

    runs: paths of the run files, by the paper whose tables use them. calibrations: paths of the calibrations of these
    runs, by the digest of the code that made the runs. made_on: the machines of the measured runs.
    """
    networks = recorded / "networks"
    networks.mkdir(parents=True, exist_ok=True)
    content = {networks / code / file.name: file.read_bytes() for code, files in calibrations.items() for file in files}
    content |= {recorded / f"{paper}{ARCHIVE}": packed(files) for paper, files in runs.items()}
    content[recorded / PLACES] = (json.dumps(sorted(set(made_on)), indent=2) + "\n").encode()
    for old in {*_calibrations(networks), *recorded.glob(f"*{ARCHIVE}")} - content.keys():
        old.unlink()
    for path, data in content.items():
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as whole:
            whole.write_bytes(data)


def packed(files: Iterable[Path]) -> bytes:
    """Return the bytes of an archive of the files, without attributes that differ from machine to machine."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for file in sorted(set(files), key=lambda file: file.name):
            member = tarfile.TarInfo(file.name)
            member.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(member, content)
    return archive.getvalue()


def _calibrations(folder: Path) -> list[Path]:
    return sorted(file for pattern in OF_CALIBRATIONS for file in folder.rglob(pattern))
