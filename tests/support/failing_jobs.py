"""Double of the jobs of `experiments.runner.batch` in which a run fails a given number of times."""

from experiments.runner.parallel import Unfinished


class FakeJobs:
    """A double of testbeds. ``failing`` maps the end of a run file's name to the number of times that the run fails."""

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
