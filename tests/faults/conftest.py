import pytest

from tests.support.training_job import training_jobs

CONFIG = """
[algorithm]
name = "{algorithm}"
{options}
[model]
name = "mlp"
hidden = [16]
[data]
name = "digits"
batch_size = 16
[optimizer]
lr = 0.05
[train]
seconds = {seconds}
snapshots = 400
[comm]
timeout = {timeout}
[stragglers.pause]
0 = {{ every = 1, seconds = 0.02 }}
1 = {{ every = 1, seconds = 0.02 }}
2 = {{ every = 1, seconds = 0.02 }}
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a training of an algorithm; processes that are left are ended after the test."""
    with training_jobs(tmp_path) as begin:

        def start(launcher, algorithm="grsgd", options="", seconds=60.0, timeout=10.0, **more):
            text = CONFIG.format(algorithm=algorithm, options=options, seconds=seconds, timeout=timeout)
            return begin(launcher, text, **more)

        yield start
