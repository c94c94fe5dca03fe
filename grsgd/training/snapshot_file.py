"""Where a rank keeps its snapshots: in memory, or on disk when they are many, and open to other processes."""

import os
import tempfile
from contextlib import suppress


class SnapshotFile:
    """A file of bytes, the first ``memory`` of them in memory; with more, all are in a temporary file.

    It has one descriptor from its beginning to its end, through which another process can read it:
    ``/proc/PID/fd/NUMBER``. Opened once, it can be read when this process is gone.
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
        """Raises OSError if there is no room on the disk."""
        if not self.is_on_disk and self._file.tell() + memoryview(data).nbytes > self._memory:
            self._move_to_disk()
        self._file.write(data)

    def flush(self):
        self._file.flush()

    def truncate(self, size: int):
        with suppress(OSError):  # what is still in the buffer does not fit either
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
