"""Functions with which one rank manages the files in the folder of a run's checkpoints. The functions list checkpoints,
find out which checkpoints are whole (have the files of all ranks), and remove files.

``FOLDER/samples-000000012800/rank-0003.ckpt`` is the file of rank 3 in a checkpoint (`grsgd.training.checkpoint_file`).
``FOLDER/curve-5f3a.../rank-0003.bin`` has all snapshots (copies of the model) that rank 3 has taken. A whole checkpoint
has the files of all ranks. All ranks share one folder for checkpoints, or each rank has a folder of its own. The file
``FOLDER/complete`` exists as soon as the first checkpoint is whole. In a folder that all ranks share, the rank that
writes the last file of the first whole checkpoint creates ``complete``. If ranks share no folder, rank 0 creates
``complete`` before the second checkpoint, or at the end of the run.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from grsgd.errors import ConfigError, RunFileError
from grsgd.files import exclusive_lock
from grsgd.training.checkpoint_file import Header, read_header

KEPT = 2
"""Number of the newest whole checkpoints, which are kept in the folder; older checkpoints are removed."""
COMPLETE, LOCK = "complete", "lock"
SAMPLES, RANK = re.compile(r"samples-([0-9]{12,18})"), re.compile(r"rank-([0-9]{4,9})\.(ckpt|bin)")
OURS = re.compile(rf"{SAMPLES.pattern}|curve-[0-9a-f]+")
LOCK_SECONDS = 5.0
"""Largest number of seconds that a job waits for the end of another job that uses the folder of checkpoints."""
LEASE_SECONDS = 120.0
"""Largest number of seconds that a job waits after the loss of a host, until a file server has released the lost host's
locks."""


NO_NUMBER = -1


class CheckpointPart(NamedTuple):
    """File of rank ``rank`` in the checkpoint that was taken after ``samples`` samples of all ranks. If the header of
    the checkpoint file cannot be read, ``problem`` is a one-line reason."""

    samples: int
    rank: int
    header: Header | None
    problem: str = ""


class Found(NamedTuple):
    """Checkpoint of ``ranks`` ranks that was taken after ``samples`` samples of all ranks. ``problem`` is the reason
    why the checkpoint is not whole (lacks a valid file of a rank), and empty for a whole checkpoint."""

    samples: int
    ranks: int = 0
    problem: str = ""


def name_of(samples: int) -> str:
    return f"samples-{samples:012d}"


def file_of(rank: int) -> str:
    return f"rank-{rank:04d}.ckpt"


def take(folder: Path, seconds: float = LOCK_SECONDS) -> IO:
    """Lock ``folder``, so that no other job takes checkpoints in this folder. Wait at most ``seconds`` seconds for
    another job to release its lock. The lock on the folder is released when the returned file is closed or this process
    ends.

    Raises ConfigError if another job holds the lock for longer than ``seconds`` seconds, or if the folder cannot be
    written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = exclusive_lock(folder / LOCK, seconds)
        if not any(map(SAMPLES.fullmatch, _names(folder))):
            # The file `complete` is from an earlier run, whose checkpoints the user has removed.
            (folder / COMPLETE).unlink(missing_ok=True)
        return lock
    except TimeoutError:
        raise ConfigError(
            f"{folder}: another job takes its checkpoints there: name another folder, or wait until it has ended"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder}: no checkpoint can be written there: {error.strerror or error}") from None


def parts(folder: Path, rank: int, ranks: int) -> list[CheckpointPart]:
    """Return the files of rank ``rank`` in all checkpoints in ``folder``. On rank 0, return also files of ranks that
    the job no longer has, whose numbers are at least ``ranks``."""
    found = []
    for samples in sorted(int(match[1]) for match in map(SAMPLES.fullmatch, _names(folder)) if match):
        for number in _numbers(folder / name_of(samples), rank, ranks):
            path = folder / name_of(samples) / file_of(number)
            try:
                header = read_header(path)
                if (header.samples, header.rank) != (samples, number):
                    raise RunFileError(f"{path}: is rank {header.rank}'s file after {header.samples} samples")
                found.append(CheckpointPart(samples, number, header))
            except RunFileError as error:
                found.append(CheckpointPart(samples, number, None, str(error)))
    return found


def checkpoints(found: Iterable[CheckpointPart]) -> list[Found]:
    """Return the checkpoints to which the files in ``found`` belong, with the newest checkpoint first."""
    by_samples: dict[int, list[CheckpointPart]] = {}
    for part in found:
        by_samples.setdefault(part.samples, []).append(part)
    return [_checkpoint(samples, by_samples[samples]) for samples in sorted(by_samples, reverse=True)]


def _checkpoint(samples: int, found: list[CheckpointPart]) -> Found:
    by_id: dict[str, list[Header]] = {}
    for part in found:
        if part.header is not None:
            by_id.setdefault(part.header.id, []).append(part.header)
    for headers in by_id.values():
        ranks = headers[0].ranks
        if len(headers) == ranks and {header.rank for header in headers} == {*range(ranks)}:
            return Found(samples, ranks)
    problems = [part.problem for part in found if part.problem]
    if problems:
        return Found(samples, 0, problems[0])
    if len(by_id) > 1:
        return Found(samples, 0, "the files belong to several checkpoints")
    (headers,) = by_id.values()
    there, ranks = {header.rank for header in headers}, headers[0].ranks
    missing = next(rank for rank in range(len(headers) + 1) if rank not in there)
    return Found(samples, ranks, f"{file_of(missing)} of {ranks} ranks is missing")


def remove_others(folder: Path, keep: set[str], rank: int, ranks: int):
    """Remove the files of rank ``rank`` in the subfolders of all checkpoints and snapshots, except in the subfolders
    named in ``keep``."""
    for name in _names(folder):
        if name not in keep and OURS.fullmatch(name):
            remove(folder / name, rank, ranks)


def remove(place: Path, rank: int, ranks: int):
    """Remove the files of rank ``rank`` in the folder ``place``, which belongs to one checkpoint or has snapshots. Rank
    0 also removes files of ranks that the job no longer has, and temporary files of killed processes."""
    if place.is_symlink():
        return
    for number in _numbers(place, rank, ranks):
        for path in (place / file_of(number), curve_in(place, number)):
            with suppress(OSError):
                path.unlink()
    with suppress(OSError):
        if rank == 0:
            for path in place.glob(".grsgd-*.tmp"):
                path.unlink()
        place.rmdir()  # rmdir() fails while other ranks still have files in the folder


def remove_older(folder: Path, samples: int, curves: dict[int, str]):
    """Remove all ranks' files of checkpoints from before ``samples`` samples, except the last `KEPT` whole checkpoints.
    Only one rank calls this function, after all ranks have written their files of the older checkpoints to the shared
    folder.

    ``curves`` has, by the number of samples of each checkpoint, the name of the folder with the snapshots of the
    checkpoint. Folders of snapshots are removed only if ``curves`` has an entry for each checkpoint that is not
    removed.
    """
    whole = whole_in(folder)[-KEPT:]
    if whole:
        mark_complete(folder)
    keep = {name_of(each) for each in whole}
    if curves.keys() >= set(whole):
        keep |= {curve for at, curve in curves.items() if at in whole or at >= samples}
    else:
        keep |= {name for name in _names(folder) if name.startswith("curve-")}
    for name in _names(folder):
        is_newer = SAMPLES.fullmatch(name) is not None and int(SAMPLES.fullmatch(name)[1]) >= samples
        if name not in keep and not is_newer and OURS.fullmatch(name):
            remove(folder / name, 0, 1)


def whole_in(folder: Path) -> list[int]:
    """Return the number of samples of each whole checkpoint in a folder that all ranks share, in ascending order."""
    return [each.samples for each in reversed(checkpoints(parts(folder, 0, 1))) if not each.problem]


def mark_complete(folder: Path):
    """Create the file ``complete`` in ``folder``, as a sign that the folder has had a whole checkpoint."""
    with suppress(OSError):
        os.close(os.open(folder / COMPLETE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666))


def mark_if_whole(folder: Path, samples: int):
    """Create the file ``complete`` in ``folder`` if the checkpoint after ``samples`` samples has the files of all
    ranks. Each rank calls this function after it has written its file of the checkpoint. So the rank that is the last
    to write its file of the checkpoint creates ``complete``."""
    if not (folder / COMPLETE).exists() and samples in whole_in(folder):
        mark_complete(folder)


def curve_in(place: Path, rank: int) -> Path:
    """Return the path of the file with the snapshots of ``rank`` in ``place``, a folder of snapshots."""
    return place / f"rank-{rank:04d}.bin"


def make_place(place: Path):
    """Create ``place``, the folder of one checkpoint or of snapshots. Raises OSError if the folder cannot be created,
    or if ``place`` is a symbolic link."""
    place.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        raise OSError(f"{place} is a symbolic link")


def _numbers(place: Path, rank: int, ranks: int) -> list[int]:
    """Return the ranks whose files in the folder ``place`` are listed and removed by the rank ``rank``. The result is
    ``rank`` itself and, on rank 0, ranks that the job no longer has, whose numbers are at least ``ranks``. Only rank 0
    lists the folder, because the folder can be large."""
    if rank:
        return [rank] if os.path.lexists(place / file_of(rank)) or os.path.lexists(curve_in(place, rank)) else []
    numbers = {int(match[1]) for match in map(RANK.fullmatch, _names(place)) if match}
    return sorted(number for number in numbers if number == 0 or number >= ranks)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def as_numbers(names: list[tuple[str, str]]) -> list[int]:
    """Convert the names of the last `KEPT` checkpoints, and of their folders of snapshots, to 2 * `KEPT` numbers that
    ranks can send. The number `NO_NUMBER` stands for a missing name."""
    numbers = [number for name, curve in names[-KEPT:] for number in (int(name[8:]), int(curve[6:] or "-1", 16))]
    return numbers + [NO_NUMBER] * (2 * KEPT - len(numbers))


def from_numbers(numbers: list[int]) -> list[tuple[str, str]]:
    """Convert ``numbers``, a result of `as_numbers`, back to the names of checkpoints and of folders of snapshots."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return [(name_of(at), f"curve-{id:013x}" if id >= 0 else "") for at, id in pairs if at != NO_NUMBER]


def is_same_folder(folder: Path, other: Path | None) -> bool:
    """Return True if ``folder`` and ``other``, which may be relative paths or links, are the same folder."""
    return other is not None and folder.resolve() == other.resolve()
