"""Division of the tests on MPI ranks among the jobs of ``make test``; ``make test-all`` runs every case in every
job."""

SHARING = [("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2), ("mpich", 3)]
"""The jobs, as pairs (MPI library, number of ranks), that share the cases of a test."""
ALONE = ("openmpi", 1)
"""The job with one rank. Few messages are sent in this job, so another job also runs its cases, if the test allows."""
MOST = 2
"""Largest number of jobs that run a test for several numbers of ranks: one job per MPI library."""


def in_share(job: tuple[str, int], case: int, cases: int, counts: tuple[int, ...], offset: int = 0) -> bool:
    """Return whether the job ``job`` runs the case ``case`` of a test that has ``cases`` cases.

    A job runs at most one case, so a test with a hundred cases takes no longer than a test with one case. `MOST` jobs
    run a test. Tests with different ``offset`` begin with different jobs. ``counts``: the numbers of ranks for which
    the test is meant.
    """
    if job == ALONE:
        return 1 in counts and case == offset % cases
    order = in_turns(counts, offset)[:MOST]
    return job in order and case == order.index(job) % cases


def in_turns(counts: tuple[int, ...], offset: int) -> list[tuple[str, int]]:
    """Return the jobs whose numbers of ranks are in ``counts``, alternating between the MPI libraries."""
    jobs = [job for job in SHARING if job[1] in counts]
    by_library = [[job for job in jobs if job[0] == library] for library in ("openmpi", "mpich")]
    rotated = [own[offset % len(own) :] + own[: offset % len(own)] for own in by_library if own]
    return [own[place] for place in range(len(jobs)) for own in rotated if place < len(own)]
