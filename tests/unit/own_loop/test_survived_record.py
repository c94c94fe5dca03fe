"""The rank that saves the recording of a loop which has outlived processes."""

from types import SimpleNamespace

from grsgd.own_loop.loop_record import LoopMeasurements
from grsgd.own_loop.survived_record import LoopEnd, save_once


def test_a_process_that_took_its_rank_after_the_end_does_not_save():
    parts = [LoopEnd(rank, rank > 0, LoopMeasurements.of_beginning(), [], 0.0) for rank in range(3)]
    told, saved = [{part.rank: part} for part in parts], []
    mpi = SimpleNamespace(allgather=lambda mine: [0, 1, 2] if isinstance(mine, int) else told, Barrier=lambda: None)
    for part in parts:

        def save(records, lost, rank=part.rank):
            saved.append((rank, len(records), lost))

        assert save_once(part, 3, save, {}, mpi, []) is None
    assert saved == [(1, 3, None)]
