"""How far a run is, on the terminal."""

from tqdm import tqdm

from grsgd import mpi_environment
from grsgd.training.progress import Progress


class ProgressLine:
    """One line on rank 0's terminal with samples, rate, loss and time left; nothing anywhere else."""

    def __init__(self, name: str, rank: int = 0):
        """``name``: what the line begins with."""
        self.name, self.is_shown = name, rank == 0 and mpi_environment.at_terminal()
        self.bar: tqdm | None = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.bar is not None:
            self.bar.refresh()
            self.bar.close()

    def update(self, progress: Progress, loss: float | None):
        """Show how far the run is."""
        if not self.is_shown:
            return
        if self.bar is None:
            self.bar = tqdm(
                desc=self.name,
                total=progress.end if progress.end is not None else progress.seconds,
                bar_format="{desc} {percentage:3.0f}% |{bar:24}| {elapsed}{postfix}, {remaining} left",
                ncols=79,
                mininterval=0.2,
                miniters=1,
            )
        now = progress.samples if progress.end is not None else progress.elapsed()
        rate = progress.samples / max(progress.elapsed(), 1e-9)
        self.bar.postfix = f"{rate:,.0f} samples/s" + (f", loss {loss:.3f}" if loss is not None else "")
        self.bar.update(min(now, self.bar.total) - self.bar.n)
