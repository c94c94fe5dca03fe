"""The size of a run file, as it is known before the run."""

from grsgd.training.description import expected_bytes
from tests.support.training import config


def test_a_run_file_that_is_too_large_is_refused(monkeypatch, tmp_path):
    """By what the matrices of so many ranks need, and the curve."""
    chosen = config("dpsgd", train={"steps": 8, "snapshots": 4})
    assert expected_bytes(chosen, 100) - expected_bytes(chosen, 99) == 8 * (3 * (100**2 - 99**2) + 32)
    more = config("dpsgd", train={"steps": 8, "snapshots": 1004})
    assert expected_bytes(more, 5) - expected_bytes(chosen, 5) == 64 * 1000
    assert expected_bytes(chosen, 1) > 2**17
