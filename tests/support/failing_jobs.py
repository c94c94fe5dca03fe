"""Doubles of the jobs of `experiments.runner.batch` that fail a given number of times."""

from experiments.runner.parallel import Unfinished


class FakeJobs:
    """A double of testbeds: ``failing`` gives, by the ends of the names of run files, how often a run fails."""

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
