"""File for a rank's snapshots, in memory, or on disk if the snapshots are large. Other processes can read the file of
snapshots."""

import os
import tempfile
from contextlib import suppress


class SnapshotFile:
    """File in memory. When the content of the file becomes larger than ``memory`` bytes, it is moved to a temporary
    file on disk.

    The file's descriptor stays the same, so that another process can open the file as ``/proc/PID/fd/NUMBER``. A
    process that has opened ``/proc/PID/fd/NUMBER`` can read the file even after the process PID has ended.
    """

    def __init__(self, memory: int):
        self._memory, self.is_on_disk = memory, not hasattr(os, "memfd_create")
        if self.is_on_disk:
            self._file = tempfile.TemporaryFile(prefix="grsgd-")
        else:
            self._file = os.fdopen(os.memfd_create("grsgd-snapshots"), "w+b")

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    def write(self, data):
        """Write ``data`` at the file's present position. Raises OSError if the disk is full."""
        if not self.is_on_disk and self._file.tell() + memoryview(data).nbytes > self._memory:
            self._move_to_disk()
        self._file.write(data)

    def flush(self):
        self._file.flush()

    def truncate(self, size: int):
        with suppress(OSError):  # the disk is full, so the buffered content cannot be written
            self._file.flush()
        self._file.truncate(size)

    def close(self):
        self._file.close()

    def _move_to_disk(self):
        self._file.flush()
        size, begin = self._file.seek(0, 2), 0
        with tempfile.TemporaryFile(prefix="grsgd-") as disk:
            while begin < size:
                begin += os.sendfile(disk.fileno(), self.fileno(), begin, size - begin)
            os.dup2(disk.fileno(), self.fileno(), inheritable=False)
        self.is_on_disk = True
        self._file.seek(0, 2)
