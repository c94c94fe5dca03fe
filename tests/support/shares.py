"""Division of the tests on ranks among the jobs of ``make test``; ``make test-all`` runs every case in every job."""

SHARING = [("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2), ("mpich", 3)]
"""The jobs, by library and number of ranks, that share the cases of a test."""
ALONE = ("openmpi", 1)
"""The job with one rank, on which few messages are seen: another job also runs its cases, if the test allows."""
MOST = 2
"""Number of jobs that run a test, if it is meant for their numbers of ranks: one per library."""


def in_share(job: tuple[str, int], case: int, cases: int, counts: tuple[int, ...], offset: int = 0) -> bool:
    """Return whether a job runs this case of a test.

    A job runs at most one case, so that a test with a hundred cases takes no longer than others. ``MOST`` jobs run a
    test. Tests with unequal offsets begin with unequal jobs. ``counts``: the numbers of ranks that the test is meant
    for.
    """
    if job == ALONE:
        return 1 in counts and case == offset % cases
    order = in_turns(counts, offset)[:MOST]
    return job in order and case == order.index(job) % cases


def in_turns(counts: tuple[int, ...], offset: int) -> list[tuple[str, int]]:
    """Return the jobs with these numbers of ranks, alternating between the libraries."""
    jobs = [job for job in SHARING if job[1] in counts]
    by_library = [[job for job in jobs if job[0] == library] for library in ("openmpi", "mpich")]
    rotated = [own[offset % len(own) :] + own[: offset % len(own)] for own in by_library if own]
    return [own[place] for place in range(len(jobs)) for own in rotated if place < len(own)]
