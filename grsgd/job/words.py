"""Word files, by which ranks tell the process that has started their job whether the run is complete. The launcher's
exit code does not always show whether the run is complete.

With ``--with-ft ulfm`` Open MPI's launcher returns 0 after a job whose processes were killed, or whose host has died.
So `grsgd run` and `grsgd testbed` give the ranks a folder for word files. Each rank writes a word file into this folder
when the rank begins and when the rank ends. The name of a word file is a fixed word and the rank's number. The rank
that saves a run writes another word file when the run file is complete.
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
from grsgd.job import exit_code
from grsgd.job.hearing import start_heart
from grsgd.job.hosts import in_allocation
from grsgd.mpi_environment import WORDS, fault_tolerant, rank
from grsgd.text import ranks_in_words

BEGUN, GONE_ON, ENDED, WHOLE = "begun", "gone-on", "ended", "whole"


def leave(word: str, text: str = "", process: int | None = None):
    """Write the word file ``word`` of this rank, if the process that has started the job has made a folder for word
    files; else do nothing.

    ``process`` is the rank of a dead process, if this process writes the word file in place of the dead process.
    """
    folder = os.environ.get(WORDS)
    if folder:
        with suppress(OSError):  # writing fails on a host without the folder for word files
            Path(folder, f"{word}-{rank() or 0 if process is None else process}").write_text(text)


def begin():
    """Write the word file which says that this rank has begun, and start the rank's heart process
    (`grsgd.job.heart`)."""
    leave(BEGUN)
    start_heart()


@cache
def of_script():
    """Call `begin` for the script of this rank, and `script_has_ended` when the script ends."""
    begin()
    process = os.getpid()
    # without ULFM, launchers themselves return the exit codes of scripts
    exit_code.note_every_exit() if fault_tolerant() else exit_code.note()
    atexit.register(lambda: script_has_ended() if os.getpid() == process else None)


def script_has_ended():
    """Write the word file which says that this rank has ended, with the exit code of its script."""
    leave(ENDED, str(exit_code.noted()))


class Words:
    """Word files of one job in ``folder``. ``out`` is the path of the run file, if it is known."""

    def __init__(self, folder: Path, out: Path | None = None):
        self.folder, self.out, self.since = folder, out, time.time()

    def ranks(self, word: str) -> list[int]:
        """Return the ranks that have written the word file ``word``."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder.glob(f"{word}-*"))

    def missing(self, leaves_file: bool) -> str | None:
        """Return a text on the missing results of a job whose launcher reports success; None if the job is complete.

        ``leaves_file`` says whether the job must write a run file. If ``leaves_file`` is False, the job may be a
        program that writes no word files.
        """
        if failed := self._failed():
            return failed
        if self.ranks(WHOLE):
            return None
        left = sorted(set(self.ranks(BEGUN)) - set(self.ranks(ENDED)))
        if left:
            return f"{ranks_in_words(left)} {'has' if len(left) == 1 else 'have'} begun and not come to the end"
        if not leaves_file or self._has_new_file():
            return None
        return "no rank has said that the run file is whole" + (f": {self.out}" if self.out else "")

    def is_without_grsgd(self) -> bool:
        """Return whether no rank has written a word file, so that no script of the job has called grsgd."""
        return not any(self.folder.iterdir())

    def _failed(self) -> str | None:
        """Return a text on the ranks whose scripts have ended with an exit code other than 0; None if all exit codes
        are 0."""
        codes = {rank: self._code(rank) for rank in self.ranks(ENDED)}
        failed = {rank: code for rank, code in codes.items() if code}
        if not failed:
            return None
        found = ", ".join(map(str, sorted(set(failed.values()))))
        return f"{ranks_in_words(list(failed))} {'has' if len(failed) == 1 else 'have'} ended with exit code {found}"

    def gone_on(self) -> str:
        """Return the text that tells where training went on after a restart, from the lowest rank that has written this
        text; "" if no rank has."""
        ranks = self.ranks(GONE_ON)
        return (self.folder / f"{GONE_ON}-{ranks[0]}").read_text() if ranks else ""

    def _code(self, rank: int) -> int:
        """Return the exit code in the word file that ``rank`` has written at its end; 0 if the file has no code."""
        text = (self.folder / f"{ENDED}-{rank}").read_text()
        return int(text) if text.isdecimal() else 0

    def _has_new_file(self) -> bool:
        """Return whether this job has written a complete run file. The run file is read because ranks on hosts without
        access to ``folder`` cannot write word files."""
        from grsgd.runs.ending import Ended
        from grsgd.runs.run_file import load_run

        try:
            is_new = self.out is not None and self.out.stat().st_mtime >= self.since - 1
            return is_new and load_run(self.out).attributes["ended"] == Ended.COMPLETED
        except (OSError, RunFileError):
            return False

    def judged(self, code: int, leaves_file: bool) -> tuple[int, str | None]:
        """Return the exit code of the job, and a line with its reason. The line is None if word files neither
        contradict nor explain ``code``, the launcher's exit code."""
        if code:
            return code, self._failed()
        missing = self.missing(leaves_file)
        if missing is None:
            return code, None
        return 1, f"the launcher's exit code is 0, but {missing}"


@contextmanager
def asked_for(out: str | None = None, on_hosts: bool = False) -> Iterator[Words]:
    """Run the block with a folder for the word files of a job that is started in the block.

    In an allocation of Slurm, and for a job ``on_hosts`` other than this host, the folder is made in the working
    directory, to which all hosts have access. For all other jobs the folder is made in the folder of temporary files.
    """
    on_hosts = on_hosts or in_allocation()
    place = Path.cwd() if on_hosts and os.access(".", os.W_OK) else None
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
