"""Division of a stream of samples among ranks and their worker processes."""

from collections.abc import Iterator
from itertools import islice

from torch.utils.data import IterableDataset, get_worker_info


class RankStream(IterableDataset):
    """Samples of one rank from an IterableDataset: every ``ranks``-th sample, from sample number ``rank`` on.

    Each rank, and each worker process of the rank, reads the whole stream, and skips the samples of all other ranks and
    worker processes. The samples of a rank do not depend on the number of worker processes of the rank.

    Parameters
    ----------
    stream
        IterableDataset that yields the same samples in the same order on all ranks and in all workers. If the stream
        has a method ``set_epoch(epoch)``, the method is called before each epoch.
    """

    def __init__(self, stream: IterableDataset, rank: int, ranks: int):
        self.stream, self.rank, self.ranks = stream, rank, ranks
        self._epoch = 0

    def set_epoch(self, epoch: int):
        """Set the number of the epoch that the next iteration over this data set reads."""
        self._epoch = epoch

    def __iter__(self) -> Iterator:
        if hasattr(self.stream, "set_epoch"):
            self.stream.set_epoch(self._epoch)
        self._epoch += 1  # a worker that lives for several epochs is told only its first epoch, and counts the others
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        return islice(self.stream, self.rank + self.ranks * number, None, self.ranks * workers)
