"""Words that ranks leave for the process that starts them: the launcher's exit code does not say that a run is whole.

With ``--with-ft ulfm`` Open MPI's launcher returns 0 after a job whose processes were killed, or whose host has died.
So `grsgd run` and `grsgd testbed` give the ranks a folder. Each rank leaves a word in this folder when it begins and
when it has come to its end. The rank that saves a run leaves another word when the file is whole.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from grsgd.errors import RunFileError
from grsgd.mpi_environment import WORDS, rank
from grsgd.text import ranks_in_words

BEGUN, ENDED, WHOLE = "begun", "ended", "whole"


def leave(word: str, text: str = ""):
    """Leave a word of this rank, if the process that has started the job asks for words."""
    folder = os.environ.get(WORDS)
    if folder:
        with suppress(OSError):  # the folder does not exist on this host
            Path(folder, f"{word}-{rank() or 0}").write_text(text)


@cache
def of_script():
    """Leave word that this rank has begun, and leave another word at the end of its script."""
    leave(BEGUN)
    process = os.getpid()
    atexit.register(lambda: leave(ENDED) if os.getpid() == process else None)


class Words:
    """Words of one job in ``folder``; ``out`` is the run file, if it is known."""

    def __init__(self, folder: Path, out: Path | None = None):
        self.folder, self.out, self.since = folder, out, time.time()

    def ranks(self, word: str) -> list[int]:
        """Return the ranks that have left this word."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{word}-*"))

    def missing(self, leaves_file: bool) -> str | None:
        """Return a text on the missing part of a job whose launcher reports success; None if nothing is missing.

        ``leaves_file`` says whether the job is to leave a run file; otherwise it may be a program that leaves no words.
        """
        if self.ranks(WHOLE):
            return None
        left = sorted(set(self.ranks(BEGUN)) - set(self.ranks(ENDED)))
        if left:
            return f"{ranks_in_words(left)} {'has' if len(left) == 1 else 'have'} begun and not come to the end"
        if not leaves_file or self._has_new_file():
            return None
        return "no rank has said that the run file is whole" + (f": {self.out}" if self.out else "")

    def _has_new_file(self) -> bool:
        """Return whether the run file is of this job and whole; for ranks on hosts that do not see the folder."""
        from grsgd.runs.ending import Ended
        from grsgd.runs.run_file import load_run

        try:
            is_new = self.out is not None and self.out.stat().st_mtime >= self.since - 1
            return is_new and load_run(self.out).attributes["ended"] == Ended.COMPLETED
        except (OSError, RunFileError):
            return False

    def judged(self, code: int, leaves_file: bool) -> tuple[int, str | None]:
        """Return the exit code of the job, and a line if it differs from ``code``, the launcher's exit code."""
        missing = self.missing(leaves_file) if code == 0 else None
        if missing is None:
            return code, None
        return 1, f"the launcher's exit code is 0, but {missing}"


@contextmanager
def asked_for(out: str | None = None) -> Iterator[Words]:
    """Run the block with a folder for the words of a job that is started in it.

    In an allocation of Slurm the folder is in the working directory, which all hosts see, otherwise with temporary
    files.
    """
    place = Path.cwd() if "SLURM_JOB_ID" in os.environ and os.access(".", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix=".grsgd-words-", dir=place)
    before = os.environ.get(WORDS)
    os.environ[WORDS] = folder
    try:
        yield Words(Path(folder), Path(out) if out else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop(WORDS)
        if before is not None:
            os.environ[WORDS] = before
