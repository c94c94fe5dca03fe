"""A job whose ranks are threads, for tests of ``grsgd doctor``, with doubles of the system's files and calls. A test
changes these doubles to plant a fault in the job."""

import errno
import json
import os
import resource
import sys
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from grsgd.doctor import clocks, examination, gpus, links, mpi_library, output_folder, places, room
from grsgd.doctor.examination import Examination
from grsgd.doctor.findings import in_json
from grsgd.job import foreign_launchers
from grsgd.machine.cray import loaded
from grsgd.mpi_environment import without_launcher
from grsgd.simulator.calibration import eager
from grsgd.simulator.calibration.pairs import Effort
from tests.support import threads
from tests.support.threads import Mpi, Request, on_threads

LIBRARY, MPIEXEC = "Open MPI v5.0.11, package: x", "mpiexec (Open MPI) 5.0.11"
SECONDS = 20.0
"""Seconds after which an examination of the job ends, together with the threads of the job's ranks."""


class Ended(Exception):
    """Exception that ends a rank, or the whole job, with the exit code ``code``."""

    def __init__(self, code: int):
        super().__init__(f"exit code {code}")
        self.code = code


@dataclass
class Job:
    """A healthy job of two ranks on one host. A test changes an attribute to plant a fault."""

    hosts: list[str] = field(default_factory=lambda: ["a", "a"])
    """Host name of each rank."""
    machines: list[str] | None = None
    """Text that identifies the machine of each rank; None if the host names identify the machines."""
    cores: list[set[int]] | None = None
    """Numbers of the processor cores of each rank; None if each rank has its own core."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the job, by name."""
    library: str = LIBRARY
    files: tuple[str, ...] = ("/x/libmpi.so.40",)
    """Paths of the files of MPI libraries that each process has loaded."""
    shared_memory: int = 2**33
    """Size of /dev/shm in bytes."""
    locked: int = resource.RLIM_INFINITY
    """Limit of locked memory per process, in bytes."""
    has_infiniband: bool = False
    has_locks: bool = True
    clock: float = 0.0
    """Seconds by which the clock of the last rank is ahead of the other ranks' clocks."""
    blocked: set[int] = field(default_factory=set)
    """Numbers of two ranks between which no message arrives; empty if all messages arrive."""
    has_gpu: bool = False
    has_cupy: bool = True


class Rank(Mpi):
    """Communicator of one rank of the job, which can lose messages and end the whole job."""

    job: Job

    def Get_attr(self, key):
        return threads.FAKE.COMM_WORLD_ATTRIBUTE

    def Abort(self, code):
        self.group.has_ended = True
        raise Ended(code)

    def Irecv(self, array, source, tag):
        return Receiving(self.group, super().Irecv(array, source, tag))

    def _send(self, request, dest, tag):
        if {self.rank, dest} == self.job.blocked:
            return Request(self.rank, request.array)
        return super()._send(request, dest, tag)


class Receiving:
    """A receive whose test raises Ended if the job has ended."""

    def __init__(self, group, request):
        self.group, self.request = group, request

    def Test(self):
        if getattr(self.group, "has_ended", False):
            raise Ended(1)
        return self.request.Test()

    def Cancel(self):
        self.request.complete = True


def examine(job: Job, folder: Path, monkeypatch, capsys) -> tuple[int, dict[tuple[str, str], dict]]:
    """Examine ``job`` with ``grsgd doctor``. Return the exit code of rank 0, and the findings by (group, name)."""
    mine = threading.local()
    plant(job, folder, mine, monkeypatch)
    out = folder / "results"
    out.mkdir()

    def work(mpi):
        sys.modules["mpi4py"].rc, sys.modules["mpi4py"].__version__ = SimpleNamespace(), "4.1"
        mine.mpi = Rank(mpi.group, mpi.rank)
        mine.mpi.job = job
        try:
            return Examination(out, in_json, SECONDS).run()
        except Ended as error:
            return error.code

    code = on_threads(monkeypatch, len(job.hosts), work)[0]
    report = json.loads(capsys.readouterr().out)
    return code, {(each["group"], each["name"]): each for each in report["findings"]}


def plant(job: Job, folder: Path, mine: threading.local, monkeypatch):
    """Replace the system's files and calls by the doubles of ``job``. ``mine.mpi`` is the communicator of the calling
    thread."""
    plant_environment(job, monkeypatch)
    plant_mpi(job, folder, mine, monkeypatch)
    plant_host(job, folder, mine, monkeypatch)
    plant_gpu(job, folder, monkeypatch)
    for module, name, value in (
        (examination, "rank", lambda: str(mine.mpi.rank)),
        (examination, "stopped_within", lambda seconds, what: nullcontext()),  # the original forks; threads must not
        (examination, "os", SimpleNamespace(**vars(os) | {"_exit": leave})),
        (examination, "PASSING_ON_SECONDS", 0.0),
        (examination, "FIRST_SPEAKS_SECONDS", 0.0),
        (foreign_launchers, "FIRST_SPEAKS_SECONDS", 0.0),
        (links, "EFFORT", Effort({8: 3, 1024: 3}, 2, 0.1, 0.5)),
        (links, "PAIR_SECONDS", 3.0 if job.blocked else SECONDS),
        (eager, "EAGER_BYTES", [1024]),
        (clocks, "answer", answer_with(job, mine, clocks.answer)),
    ):
        monkeypatch.setattr(module, name, value)


def leave(code: int):
    """End the thread of a rank, in place of ``os._exit``, which would end the process of the tests."""
    raise Ended(code)


def answer_with(job: Job, mine: threading.local, answer):
    """Return `clocks.answer`, changed so that the last rank has a wrong clock. ``answer`` is the original function."""

    def wrong(post, seconds):
        difference = job.clock if mine.mpi.rank == mine.mpi.size - 1 else 0.0
        return answer(post, seconds, lambda: time.time() + difference)

    return wrong


def plant_environment(job: Job, monkeypatch):
    """Set the environment variables of ``job``, and remove all other variables of launchers."""
    others = {*os.environ} - {*without_launcher(os.environ)} | {"WORLD_SIZE", "HOROVOD_SIZE", "OMP_NUM_THREADS"}
    for name in others | {"MPICH_GPU_SUPPORT_ENABLED", "CUDA_VISIBLE_DEVICES", "GRSGD_START_SECONDS"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in job.variables.items():
        monkeypatch.setenv(name, value)


def plant_mpi(job: Job, folder: Path, mine: threading.local, monkeypatch):
    """Let Python load the MPI library of ``job``, and find a shell script in place of ``mpiexec``."""

    class Library(SimpleNamespace):
        """A double of ``mpi4py.MPI`` whose ``COMM_WORLD`` is the communicator of the calling thread."""

        @property
        def COMM_WORLD(self):
            return mine.mpi

    known = {name: value for name, value in vars(threads.FAKE).items() if name != "COMM_WORLD"}
    library = Library(
        **known | {"Get_library_version": lambda: job.library, "Init_thread": lambda level: level},
        COMM_WORLD_ATTRIBUTE=2**15 - 1,
        THREAD_SINGLE=0,
        THREAD_FUNNELED=1,
        THREAD_SERIALIZED=2,
        Get_version=lambda: (3, 1),
        Finalize=lambda: None,
        __file__="MPI.openmpi.so",
    )
    mpiexec = folder / "bin" / "mpiexec"
    mpiexec.parent.mkdir()
    mpiexec.write_text(f"#!/bin/sh\necho '{MPIEXEC}'\n")
    mpiexec.chmod(0o755)
    maps = folder / "maps"
    maps.write_text("".join(f"7f00-7f01 r-xp 00000000 08:01 12 {path}\n" for path in job.files))
    monkeypatch.setattr(sys, "executable", str(mpiexec.with_name("python")))
    monkeypatch.setattr(threads, "FAKE", library)
    monkeypatch.setattr(mpi_library, "loaded", partial(loaded, maps=maps))


def plant_host(job: Job, folder: Path, mine: threading.local, monkeypatch):
    """Let the system's calls and files describe the hosts of ``job``.

    The hosts' network card is listed in the folder of InfiniBand devices, even if the card is for Ethernet.
    """
    port = folder / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n" if job.has_infiniband else "Ethernet\n")
    (port / "state").write_text("4: ACTIVE\n")
    machines, cores = job.machines or job.hosts, job.cores or [{rank} for rank, _ in enumerate(job.hosts)]
    limits = {room.resource.RLIMIT_MEMLOCK: job.locked, room.resource.RLIMIT_NOFILE: 65536}
    sizes = {room.SHARED: job.shared_memory}

    def disk_usage(path):
        return SimpleNamespace(**dict.fromkeys(("total", "free"), sizes.get(path, 2**40)))

    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for module, name, value in (
        (places.platform, "node", lambda: job.hosts[mine.mpi.rank]),
        (places.os, "cpu_count", lambda: 8),
        (places, "machine", lambda: machines[mine.mpi.rank]),
        (places, "allowed_cores", lambda: frozenset(cores[mine.mpi.rank])),
        (places, "numa_nodes", lambda: {0: frozenset(range(8))}),
        (places, "cpu_quota", lambda: None),
        (room.shutil, "disk_usage", disk_usage),
        (room.resource, "getrlimit", lambda kind: (limits.get(kind, resource.RLIM_INFINITY),) * 2),
        (room, "facts", partial(room.facts, devices=folder / "infiniband")),
        (output_folder, "in_child", lambda function, seconds, *words: function(*words)),
        (output_folder, "SLOW_SECONDS", 60.0),  # other tests may write to the disk at the same time
        *([] if job.has_locks else [(output_folder.fcntl, "flock", no_locks)]),
    ):
        monkeypatch.setattr(module, name, value)


def plant_gpu(job: Job, folder: Path, monkeypatch):
    """Let the driver's folder and torch show one GPU per rank if ``job`` has GPUs. Hide the package CuPy if ``job`` has
    none."""
    numbers = range(len(job.hosts) if job.has_gpu else 0)
    for number in numbers:
        (folder / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: job.has_gpu)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(numbers))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: SimpleNamespace(name="H200"))
    monkeypatch.setattr("torch.version.cuda", "12.8")
    monkeypatch.setattr(gpus, "find_spec", lambda name: name if job.has_cupy else None)
    monkeypatch.setattr(gpus, "facts", partial(gpus.facts, folder / "proc", folder / "sys"))
