"""File to which a rank appends its snapshots, in the folder of checkpoints. Checkpoints store a digest of each snapshot
in the file, to find damaged snapshots."""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from grsgd.training.checkpoint_folder import curve_in, make_place
from grsgd.training.snapshots import NOT_KEPT, Snapshots

NAME = re.compile(r"curve-[0-9a-f]{1,16}")


class CurveFile:
    """File of one rank's snapshots. ``folder`` is the folder that has all checkpoints. ``name`` is the name of the
    subfolder that has the file, or "" before the first checkpoint. ``digests`` has a digest of each snapshot in the
    file."""

    def __init__(self, folder: Path, rank: int, name: str = "", digests: list[str] = ()):
        self.folder, self.rank = folder, rank
        self.name, self.digests = name, list(digests)
        if name and not NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a curve in a checkpoint")

    @property
    def path(self) -> Path:
        return curve_in(self.folder / self.name, self.rank)

    def write(self, snapshots: Snapshots, count: int, id: str):
        """Append the snapshots with numbers below ``count`` that the file does not have yet. ``id`` is the checkpoint's
        id, which is the same on all ranks. If there is no subfolder for the file yet, a subfolder is created whose name
        contains ``id``.

        Raises OSError if the file of snapshots cannot be written.
        """
        self.name = self.name or f"curve-{id}"
        if len(self.digests) >= count:
            return
        place = self.folder / self.name
        make_place(place)
        digests = list(self.digests)
        with open(curve_in(place, self.rank), "r+b" if digests else "wb", opener=_no_link) as file:
            for number in range(len(digests), count):
                file.seek(number * snapshots.bytes)
                digest = hashlib.sha256()
                for piece in snapshots.pieces(number):
                    digest.update(piece)
                    file.write(piece)
                digests.append(digest.hexdigest())
            file.flush()
            os.fsync(file.fileno())
        self.digests = digests

    def give(self, snapshots: Snapshots) -> bool:
        """Copy the models in the file into ``snapshots``, which already has the progress of the run at each snapshot.
        Return True if no snapshot in the file is damaged or missing.

        Damaged snapshots are marked as missing (`NOT_KEPT`) in ``snapshots``, which reports the damage in a warning.
        """
        renumbered = {}
        for number, content in enumerate(self._contents(snapshots.bytes)):
            if content is not None:
                renumbered[number] = len(renumbered)
                snapshots.append(content)
        if len(renumbered) < len(self.digests):
            snapshots.trouble = f"{self.path} is damaged"
        snapshots.numbers = [
            renumbered.get(number, NOT_KEPT) if number >= 0 else number for number in snapshots.numbers
        ]
        return len(renumbered) == len(self.digests)

    def _contents(self, bytes: int) -> Iterator[bytes | None]:
        """Yield the bytes of each snapshot in the file, or None for a damaged or missing snapshot."""
        for number, digest in enumerate(self.digests):
            try:
                with open(self.path, "rb", opener=_no_link) as file:
                    file.seek(number * bytes)
                    content = file.read(bytes)
            except OSError:
                content = b""
            yield content if hashlib.sha256(content).hexdigest() == digest else None


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
