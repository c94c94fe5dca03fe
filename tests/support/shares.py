"""Which job of ``make test`` runs which cases of the tests on ranks; ``make test-all`` runs every case in every job."""

SHARING = [("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2), ("mpich", 3)]
"""The jobs, by library and number of ranks, among which the cases of a test are shared."""
ALONE = ("openmpi", 1)
"""Few messages are seen on one rank: what this job runs is run in another, too, where the test allows."""
LEAST, MOST = 2, 3
"""Jobs that run a test, by its number of cases; of two jobs each has a library of its own."""


def in_share(job: tuple[str, int], case: int, cases: int, counts: tuple[int, ...], offset: int = 0) -> bool:
    """Return whether a job runs this case of a test.

    A job runs one case at most, so that a test of a hundred cases takes no longer than others. Of the jobs that share
    the cases as many run the test as it has cases, from ``LEAST`` to ``MOST``. Tests with unequal offsets begin with
    unequal jobs. ``counts``: the numbers of ranks that the test is meant for.
    """
    if job == ALONE:
        return 1 in counts and case == offset % cases
    order = in_turns(counts, offset)[: min(max(LEAST, cases), MOST)]
    return job in order and case == order.index(job) % cases


def in_turns(counts: tuple[int, ...], offset: int) -> list[tuple[str, int]]:
    """Return the jobs of these numbers of ranks, the libraries in turns."""
    jobs = [job for job in SHARING if job[1] in counts]
    by_library = [[job for job in jobs if job[0] == library] for library in ("openmpi", "mpich")]
    rotated = [own[offset % len(own) :] + own[: offset % len(own)] for own in by_library if own]
    return [own[place] for place in range(len(jobs)) for own in rotated if place < len(own)]
