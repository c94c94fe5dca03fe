import pytest
from job import Job


@pytest.fixture
def start(tmp_path):
    """Starts jobs, with the arguments of `job.Job` but for the folder; what they have left is ended after the test."""
    jobs = []

    def begin(way, algorithm="grsgd", **options):
        jobs.append(Job(way, tmp_path, algorithm, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.clean_up()
