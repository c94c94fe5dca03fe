"""Progress of a loop over `grsgd.surviving` in which the ranks take their iterations independently."""

from grsgd.training.progress import Counted, Progress


class CountedIterations(Counted):
    """Progress of ranks that take their iterations independently of each other. An iteration counts as one sample."""

    def state(self, members):
        """Return the state that `restore` needs. Iterations of ranks without a process are left out, because no rank of
        a later job continues them."""
        counts = self.counts[list(members)]
        return Progress.state(self, members) | {f"count_{rank}": int(count) for rank, count in enumerate(counts)}
