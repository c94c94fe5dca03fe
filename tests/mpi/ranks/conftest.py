"""Fixtures of tests that run on all ranks of an MPI job at once; `tests/mpi/test_on_ranks.py` starts the job."""

import os
import zlib

import pytest

from tests.support.shares import in_share

COUNT = int(os.environ.get("GRSGD_TEST_RANKS", 0))
JOB = (os.environ.get("GRSGD_TEST_LIBRARY", "openmpi"), COUNT)
TRANSFER = os.environ.get("GRSGD_TEST_TRANSFER")
"""The transport by which all arrays travel as if they lay on a GPU; None: arrays travel normally."""
collect_ignore_glob = [] if COUNT else ["test_*.py"]

if COUNT:
    from mpi4py import MPI

    from grsgd.comm.backend import MpiBackend
    from grsgd.comm.communicator import Communicator
    from grsgd.comm.driver import MpiDriver

    WORLD = MPI.COMM_WORLD
    assert WORLD.size == COUNT, f"{WORLD.size} ranks instead of {COUNT}"
    LEFT: list[str] = []
    """Messages that were left in communicators which the present test has freed."""

    if TRANSFER:
        from tests.support import device_double

        device_double.install(TRANSFER, WORLD)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        if WORLD.rank:
            config.pluginmanager.unregister(name="terminalreporter")

    @pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
    def pytest_collection_modifyitems(items):
        cases = {}
        for item in items:
            cases.setdefault(item.function, []).append(item)
        for function, items in cases.items():
            mark, name = items[0].get_closest_marker("ranks"), zlib.crc32(function.__qualname__.encode())
            counts = mark.args if mark else (1, 2, 3, 4, 5)
            for number, item in enumerate(items):
                if COUNT not in counts:
                    item.add_marker(pytest.mark.skip(reason=f"not for {COUNT} ranks"))
                if not in_share(JOB, number, len(items), counts, name):
                    item.add_marker(pytest.mark.exhaustive)

    def free_empty(backend, free=MpiBackend.free):
        """Free a communicator and note messages left in it.

        MPICH gives the number of a freed communicator to a later one, which would receive these messages.
        """
        backend.mpi.Barrier()
        status = MPI.Status()
        if backend.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
            LEFT.append(f"{status.Get_count()} bytes of rank {status.Get_source()}, tag {status.Get_tag()}")
        free(backend)

    MpiBackend.free = free_empty

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(pyfuncitem):
        """Fail a test on all ranks, with the error of the failing rank, if it fails on one rank; the others would else
        wait."""
        error = result = None
        try:
            LEFT.clear()
            result = yield
            assert not LEFT
        except Exception as caught:
            error = caught
        errors = WORLD.allgather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, message in enumerate(errors):
            if message is not None:
                pytest.fail(f"rank {rank}: {message}", pytrace=False)
        return result

    @pytest.fixture
    def world():
        return WORLD

    @pytest.fixture
    def comm():
        """Yield a communicator of the test's own, which messages of another test cannot reach."""
        mpi = WORLD.Dup()
        yield Communicator(MpiBackend(mpi))

    @pytest.fixture(params=["inline", "thread"])
    def driver(request):
        driver = MpiDriver(WORLD.rank, timeout=20, progress_mode=request.param)
        yield driver
        driver.close()
