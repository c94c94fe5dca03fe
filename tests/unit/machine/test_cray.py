"""What Cray MPICH says about GPU memory, from texts; Cray MPICH itself has never run here."""

import pytest

from grsgd.machine import cray

LIBRARY = "MPI VERSION    : CRAY MPICH version 8.1.30.8 (ANL base 3.4a2)"
MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 08:01 123   /opt/cray/pe/lib64/libmpi_gtl_cuda.so.0
7f0000001000-7f0000002000 r--p 00000000 08:01 123   /opt/cray/pe/lib64/libmpi_gtl_cuda.so.0
7f0000002000-7f0000003000 r-xp 00000000 08:01 124   /opt/cray/pe/lib64/libmpi_gnu_123.so.12
7f0000003000-7f0000004000 rw-p 00000000 00:00 0
"""


def test_gtl_is_found_among_the_loaded_files(tmp_path):
    (tmp_path / "maps").write_text(MAPS)
    assert cray.loaded(maps=tmp_path / "maps") == ("/opt/cray/pe/lib64/libmpi_gtl_cuda.so.0",)
    assert cray.loaded(maps=tmp_path / "none") == () == cray.loaded()


@pytest.mark.parametrize(
    "library, wanted, files, aborts",
    [
        (LIBRARY, "1", (), True),
        (LIBRARY, "1", ("libmpi_gtl_cuda.so",), False),
        (LIBRARY, "0", (), False),
        (LIBRARY, "", (), False),
        ("Open MPI v5.0.8", "1", (), False),
    ],
)
def test_a_job_that_would_be_aborted_is_told_the_remedy(library, wanted, files, aborts):
    reason = cray.abort_reason(library, {cray.WANTED: wanted}, files)
    assert (reason is not None) == aborts
    assert not aborts or ("GTL is not linked" in reason and "LD_PRELOAD" in reason and "\n" not in reason)
