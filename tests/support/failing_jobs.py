"""Jobs of `experiments.runner.batch` that fail so many times, in place of real ones."""

from experiments.runner.parallel import Unfinished


class FakeJobs:
    """In place of testbeds: jobs in which some runs fail so many times, by the end of the names of their files."""

    def __init__(self, failing, make=lambda run: None):
        self.failing, self.make, self.begun = dict(failing), make, []

    def make_runs(self, host, ranks, runs, seconds):
        self.begun.append(len(runs))
        for run in runs:
            name = next((name for name in self.failing if run.out.endswith(name)), "")
            if self.failing.get(name, 0) > 0:
                self.failing[name] -= 1
                raise Unfinished("it ended")
            self.make(run)
            yield run
