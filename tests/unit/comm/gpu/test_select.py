"""How the transport of arrays in GPU memory is selected, on ranks that are threads; a double stands for the GPU."""

import sys
from types import SimpleNamespace

import pytest
import torch

from grsgd.comm.backend import MpiBackend
from grsgd.comm.gpu import select
from grsgd.errors import ConfigError
from grsgd.models.flat import Flat
from tests.support.device_double import DeviceDouble, Memory
from tests.support.nccl_double import NcclDouble
from tests.support.threads import on_threads

CPU, GPU = torch.device("cpu"), SimpleNamespace(type="cuda")
NBYTES = 4000
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.30.8 (ANL base 3.4a2)\nMPI BUILD INFO : x"


@pytest.fixture
def as_if_on_gpu(monkeypatch):
    """All arrays are in host memory, and travel as if they lay on a GPU."""
    monkeypatch.setattr(select, "Memory", Memory)
    monkeypatch.setattr(select, "GpuBackend", DeviceDouble)
    monkeypatch.setattr(select, "Flat", SimpleNamespace(zeros=lambda size, dtype, _: Flat.zeros(size, dtype, CPU)))
    arange = torch.arange
    on_cpu = SimpleNamespace(
        arange=lambda size, dtype, device: arange(size, dtype=dtype), float32=torch.float32, equal=torch.equal
    )
    monkeypatch.setattr(select, "torch", on_cpu)
    monkeypatch.setattr(select, "cuda_aware_mpi_error", lambda module, seconds: f"this library knows no {module}")


def choices(monkeypatch, devices, wanted):
    def work(mpi):
        try:
            return select.select_transport(MpiBackend(mpi, 5.0), devices[mpi.rank], wanted, NBYTES)
        except ConfigError as error:
            return str(error)

    return on_threads(monkeypatch, len(devices), work)


def test_the_fastest_that_works(as_if_on_gpu, monkeypatch):
    found = choices(monkeypatch, [GPU] * 2, "auto")
    assert {choice.name for choice in found} in ({"staged"}, {"ipc"})
    for choice in found:
        assert choice.results["direct"] == "rank 0: this library knows no cupy"
        assert choice.results[choice.name] == min(choice.results["staged"], choice.results["ipc"])
        assert type(choice.backend) is DeviceDouble and choice.backend.timeout == 5.0
        assert str(choice).startswith("direct rank 0: ") and str(choice).endswith(f" ms ({NBYTES} bytes)")
        assert choice.backend.transport.__class__.__name__.lower() == choice.name


def test_the_one_that_is_wanted(as_if_on_gpu, monkeypatch):
    assert [choice.name for choice in choices(monkeypatch, [GPU] * 2, "staged")] == ["staged"] * 2
    for error in choices(monkeypatch, [GPU] * 2, "direct"):
        assert error == "comm.transfer = 'direct' cannot be used here: direct: rank 0: this library knows no cupy"


def test_a_transport_that_brings_something_else_is_not_used(as_if_on_gpu, monkeypatch):
    copy_in = Memory.copy_in

    def wrong(self, array, begin, host, after):
        host[-1:] ^= 1
        return copy_in(self, array, begin, host, after)

    monkeypatch.setattr(Memory, "copy_in", wrong)
    for error in choices(monkeypatch, [GPU] * 2, "staged"):
        assert "did not arrive as it was sent" in error


@pytest.fixture
def nccl(as_if_on_gpu, monkeypatch):
    """``nccl(**options)``: two ranks whose NCCL is a double with these options; what each rank chooses."""

    def chosen(gpus=("1", "2"), **options):
        made, rooms = iter(gpus), {}
        libraries.clear()

        def library():
            libraries.append(NcclDouble(rooms, next(made), **options))
            return libraries[-1]

        monkeypatch.setattr(select, "CupyNccl", library)
        return choices(monkeypatch, [GPU] * 2, "nccl")

    return chosen


libraries = []


def test_nccl_if_it_is_wanted(nccl):
    for choice in nccl():
        assert choice.name == "nccl" and [*choice.results] == ["nccl"] and choice.results["nccl"] > 0
    assert not any(library.is_aborted for library in libraries) and all(library.links for library in libraries)


@pytest.mark.parametrize(
    "gpus, words",
    [
        (("1", "1"), "nccl: ranks 0 and 1 share a GPU: NCCL needs a GPU per rank"),
        (
            ("1", ImportError("libnccl")),
            "CuPy finds no NCCL (libnccl): `pip install nvidia-nccl-cu12` or `nvidia-nccl-cu13`",
        ),
    ],
)
def test_nccl_cannot_be_used(gpus, words, nccl):
    for error in nccl(gpus):
        assert error.startswith("comm.transfer = 'nccl' cannot be used here: ") and words in error
    assert not any(library.links for library in libraries)


def test_nccl_cannot_be_used_by_ranks_that_survive_deaths(nccl, monkeypatch):
    monkeypatch.setattr("grsgd.comm.backend.fault_tolerant", lambda: True)
    assert all("with --with-ft ulfm, NCCL would go on waiting" in error for error in nccl())


def test_nccl_that_hangs_is_aborted(nccl, monkeypatch):
    trial = select.transport_error
    monkeypatch.setattr(select, "transport_error", lambda *words: trial(*words[:3], 0.5, 0.5))
    for error in nccl(hangs=True):
        assert "waited 0.5 s" in error
    assert all(link.is_aborted for library in libraries for link in library.links)


def test_nccl_needs_gpus(as_if_on_gpu, monkeypatch):
    for error in choices(monkeypatch, [CPU] * 2, "nccl"):
        assert error.startswith("comm.transfer = 'nccl': NCCL needs GPUs")


def test_one_rank_needs_no_trial(as_if_on_gpu, monkeypatch):
    (choice,) = choices(monkeypatch, [GPU], "auto")
    assert (choice.name, choice.results) == ("none", {}) and type(choice.backend) is DeviceDouble


def test_without_a_gpu(as_if_on_gpu, monkeypatch):
    for choice in choices(monkeypatch, [CPU] * 2, "auto"):
        assert choice.name == "host" and type(choice.backend) is MpiBackend and str(choice) == ""
    for error in choices(monkeypatch, [GPU, CPU, CPU], "auto"):
        assert error.startswith("device: ranks [1, 2] have no GPU")


# ---- a library with GPU memory, tried in a process of its own


@pytest.mark.parametrize(
    "code, stderr, why",
    [
        (0, "", None),
        (1, "a warning\nRuntimeError: 400 bytes did not arrive\n", "RuntimeError: 400 bytes did not arrive"),
        (-11, "", "exit code -11"),
    ],
)
def test_a_process_tells_whether_a_library_sends_gpu_memory(code, stderr, why, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        return SimpleNamespace(returncode=code, stderr=stderr)

    monkeypatch.setattr(select.subprocess, "run", run)
    monkeypatch.setattr(select, "find_mpiexec", lambda: "mpiexec")
    expected = why and f"the MPI library cannot send GPU memory ({why})"
    assert select.cuda_aware_mpi_error("cupy") == expected
    assert commands[0][:3] == ["mpiexec", "-n", "2"] and commands[0][-2:] == ["grsgd.comm.gpu.select", "cupy"]


def no_mpiexec():
    raise ConfigError("no mpiexec")


def test_without_mpiexec_one_process_tries(monkeypatch):
    commands = []
    run = lambda command, **_: commands.append(command) or SimpleNamespace(returncode=0, stderr="")  # noqa: E731
    monkeypatch.setattr(select.subprocess, "run", run)
    monkeypatch.setattr(select, "find_mpiexec", no_mpiexec)
    assert select.cuda_aware_mpi_error("cupy") is None and commands[0][0] == sys.executable


@pytest.mark.parametrize(
    "library, wanted, reason",
    [
        (CRAY, "1", None),
        (CRAY, "0", "MPICH_GPU_SUPPORT_ENABLED=1 is not set"),
        ("MVAPICH2 Version      :\t2.3.7", "0", "(Error: 7); try MV2_USE_CUDA=1"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS\n", "0", "(Error: 7); try I_MPI_OFFLOAD=1"),
        ("Open MPI v5.0.8, package: x", "0", "the MPI library cannot send GPU memory (Error: 7)"),
    ],
)
def test_libraries_need_what_their_makers_say(library, wanted, reason, monkeypatch):
    """The texts are those that the libraries print by their documentation; none but Open MPI is installed here."""
    mpi = SimpleNamespace(Get_library_version=lambda: library)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", wanted)
    failed = SimpleNamespace(returncode=1, stderr="Error: 7\n-----\nmpiexec has ended the job\n")
    monkeypatch.setattr(select.subprocess, "run", lambda *_, **__: failed)
    found = select.cuda_aware_mpi_error("cupy")
    assert found is None if reason is None else reason in found and "\n" not in found


def test_a_library_that_hangs_does_not_send_gpu_memory(monkeypatch):
    def run(command, timeout, **options):
        raise select.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(select.subprocess, "run", run)
    why = "the MPI library has not sent GPU memory within 3 s, including the import of cupy"
    assert select.cuda_aware_mpi_error("cupy", 3.0) == why


@pytest.mark.parametrize("limits, seconds", [((), select.TRIAL_SECONDS), ((4.0, 7.5), 7.5)])
def test_the_trial_of_the_library_has_the_time_that_the_caller_gives(limits, seconds, as_if_on_gpu, monkeypatch):
    given = []
    monkeypatch.setattr(select, "cuda_aware_mpi_error", lambda module, seconds: given.append(seconds) or "none")
    on_threads(monkeypatch, 2, lambda mpi: select.select_transport(MpiBackend(mpi), GPU, "auto", NBYTES, *limits))
    assert given and {*given} == {seconds}


@pytest.mark.parametrize("wrong", [0, 1])
def test_what_arrives_is_compared_with_what_was_sent(wrong, monkeypatch):
    waiting = []

    def waitall(requests):
        assert len(requests) == 2
        (into, _), (content, _) = waiting[-2:]
        into[:] = content + wrong

    def post(array, rank):
        waiting.append((array, rank))
        return array

    world = SimpleNamespace(rank=0, size=1, Irecv=post, Isend=post)
    mpi = SimpleNamespace(COMM_WORLD=world, Request=SimpleNamespace(Waitall=waitall))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))
    monkeypatch.setattr(select.signal, "alarm", lambda seconds: None)
    if wrong:
        with pytest.raises(RuntimeError, match="400 bytes did not arrive as they were sent"):
            select.send_in_a_ring("numpy")
    else:
        select.send_in_a_ring("numpy")
        assert len(waiting) == 4 and waiting[2][0].size == 2**21
