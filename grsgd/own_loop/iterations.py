"""Count of the iterations of ranks that run freely in a loop over `grsgd.surviving`."""

from grsgd.training.progress import Counted, Progress


class CountedIterations(Counted):
    """Progress of ranks that each take iterations of their own; an iteration counts as one sample."""

    def state(self, members):
        """Return the state that `restore` needs; the iterations of ranks without a process are left out, because they
        are iterations of no other rank."""
        counts = self.counts[list(members)]
        return Progress.state(self, members) | {f"count_{rank}": int(count) for rank, count in enumerate(counts)}
