"""Times of the phases of start-up, between the start of a rank's process and the rank's first step."""

import atexit
import gc
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from grsgd.comm.watchdog import within


class StartUp:
    """Real time and processor time of each phase of the start-up, in seconds. ``shown`` says whether `tell` prints
    these times.

    Each phase of the start-up begins when the previous phase ends. The first phase of the start-up begins with the
    process.
    """

    def __init__(self, shown: bool = False):
        self.shown = shown
        self.phases: dict[str, tuple[float, float]] = {}
        """Seconds of real time, and seconds of processor time, by name of the phase."""
        self._last = time.perf_counter() - age(), 0.0

    def passed(self, phase: str):
        """Add the time since the end of the last phase, or since the process began, to the time of ``phase``."""
        now = time.perf_counter(), time.process_time()
        clock, processor = self.phases.get(phase, (0.0, 0.0))
        self.phases[phase] = clock + now[0] - self._last[0], processor + now[1] - self._last[1]
        self._last = now

    def tell(self, mpi, timeout: float):
        """Make rank 0 print the times of the phases of the rank that has used most processor time; to be called on all
        ranks."""
        if not self.shown:
            return
        with within(timeout, "telling rank 0 how long the start-up took"):
            ranks = mpi.gather(self.phases)
        if ranks is not None:
            print(line(ranks), file=sys.stderr, flush=True)


def line(ranks: list[dict[str, tuple[float, float]]]) -> str:
    """Return a line with the times of the phases of the rank that has used most processor time. ``ranks`` has one
    dictionary per rank, with the times of the rank's phases."""
    processors = [sum(processor for _, processor in phases.values()) for phases in ranks]
    busiest = max(range(len(ranks)), key=processors.__getitem__)
    phases = ranks[busiest]
    total = sum(clock for clock, _ in phases.values())
    parts = ", ".join(f"{phase} {clock:.1f} ({processor:.1f})" for phase, (clock, processor) in phases.items())
    return f"start-up of rank {busiest}: {total:.1f} s ({processors[busiest]:.1f} of the processor): {parts}"


def age() -> float:
    """Return the seconds since this process began. If the system does not give the start time of the process, return
    the process's processor time, which is shorter."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.process_time()


@contextmanager
def importing():
    """Run the block, which imports torch, without garbage collection. With garbage collection Python would search the
    imported modules again and again, which takes a fifth of the import's time. Modules are never garbage. Objects that
    the block creates are never searched for garbage later. At the end of the process no objects are searched for
    garbage, either, to save time."""
    # garbage collection stays on if torch was imported earlier, because objects other than modules may exist
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.freeze)
