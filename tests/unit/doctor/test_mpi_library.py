"""The MPI library, as it is loaded and as mpi4py was built."""

from types import SimpleNamespace

import pytest

from grsgd.doctor import mpi_library
from grsgd.doctor.mpi_library import LIBRARY, MpiFacts, build_of, loaded

HEALTHY = MpiFacts(
    "Open MPI v5.0.11", "3.1", "mpi4py 4.1", ("/x/libmpi.so.40",), "MULTIPLE", "/x/mpiexec", "mpiexec (Open MPI) 5.0.11"
)
HYDRA = "HYDRA build details:\n    Version:      5.0.2\n"


def hurting(*ranks, **options) -> dict[str, str]:
    return {each.name: each.remedy for each in mpi_library.findings(ranks, **options) if each.remedy}


def test_a_healthy_library():
    assert hurting(HEALTHY, HEALTHY._replace(mpiexec="", mpiexec_version="")) == {}


@pytest.mark.parametrize(
    "file, words",
    [
        ("MPI.openmpi.cpython-311-x86_64-linux-gnu.so", "a wheel for the ABI of Open MPI"),
        ("MPI.mpiabi.abi3.so", "a wheel for the ABI of the MPI 5 standard"),
        ("MPI.cpython-311-x86_64-linux-gnu.so", "built for the MPI library of this system"),
    ],
)
def test_how_mpi4py_was_built(file, words):
    assert build_of(file) == words


def test_loaded_libraries(tmp_path):
    maps = tmp_path / "maps"
    lines = ["/a/libmpi.so.40.40.7", "/a/libmpi.so.40.40.7", "/b/libmpich.so.12", "/c/libmpi_mpifh.so", "/d/libm.so.6"]
    lines += ["/e/libmpi_gnu_91.so.12", "/e/libmpi_gtl_cuda.so"]
    mapped = [f"7f00-7f01 r-xp 00000000 08:01 12 {path}\n" for path in lines]
    maps.write_text("".join([*mapped, "7f02-7f03 rw-p 0 0:0 0\n"]))
    assert loaded(LIBRARY, maps) == ("/a/libmpi.so.40.40.7", "/b/libmpich.so.12", "/e/libmpi_gnu_91.so.12")


def test_a_second_library_by_ld_library_path_hurts():
    two = HEALTHY._replace(files=("/x/libmpi.so.40", "/opt/libmpich.so.12"))
    assert "LD_LIBRARY_PATH" in hurting(two)["loaded from"]


def test_an_mpiexec_of_another_library_hurts():
    wrong = HEALTHY._replace(mpiexec_version=HYDRA)
    assert "belongs to MPICH: put the mpiexec of Open MPI first" in hurting(wrong)["mpiexec"]
    assert hurting(wrong, is_started_by_mpiexec=False) == {}
    found = next(each for each in mpi_library.findings([wrong]) if each.name == "mpiexec")
    assert found.value == "/x/mpiexec (HYDRA 5.0.2)"


@pytest.mark.parametrize(
    "library, mpiexec, versions",
    [
        ("Open MPI v4.1.6", "mpiexec (Open MPI) 5.0.11", "uses Open MPI 4.1, and this mpiexec belongs to 5.0: "),
        ("Open MPI v5.0.3", "mpiexec (OpenRTE) 4.1.6\n", "uses Open MPI 5.0, and this mpiexec belongs to 4.1: "),
        ("MPICH Version: 4.2.1", HYDRA, "uses MPICH 4.2, and this mpiexec belongs to 5.0: "),
        ("MPICH Version: 5.0.1", HYDRA, None),
        ("Open MPI v5.0.3", "mpiexec (Open MPI) 5.0.11", None),
        ("MPI VERSION : CRAY MPICH version 8.1", HYDRA, None),
    ],
)
def test_an_mpiexec_of_another_version_hurts(library, mpiexec, versions):
    found = HEALTHY._replace(library=library, mpiexec_version=mpiexec)
    remedy = hurting(found).get("mpiexec")
    assert (remedy is None) == (versions is None)
    assert versions is None or versions in remedy and "LD_LIBRARY_PATH" in remedy
    assert hurting(found, is_started_by_mpiexec=False) == {}


def test_no_mpiexec_and_different_libraries_and_a_low_thread_level_hurt():
    bad = HEALTHY._replace(mpiexec="", mpiexec_version="", thread_level="FUNNELED")
    found = hurting(bad, HEALTHY._replace(library="MPICH 5"))
    assert {*found} == {"library", "thread level", "mpiexec"} and "MPI_THREAD_MULTIPLE" in found["thread level"]


def test_the_thread_level_by_its_number():
    module = SimpleNamespace(THREAD_SINGLE=0, THREAD_FUNNELED=1, THREAD_SERIALIZED=2, THREAD_MULTIPLE=3)
    module.Query_thread = lambda: 2
    assert mpi_library.thread_level(module) == "SERIALIZED"
