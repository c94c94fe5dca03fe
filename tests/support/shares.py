"""Which job of ``make test`` runs which cases of the tests on ranks; ``make test-all`` runs every case in every job."""

SHARING = [("openmpi", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 2), ("mpich", 3)]
"""The jobs, by library and number of ranks, among which the cases of a test are shared."""
ALONE = ("openmpi", 1)
"""Few messages are seen on one rank: what this job runs is run in another, too, where the test allows."""
MOST = 1
"""Cases of a test in one job, so that a test of a hundred cases takes no longer than others."""


def in_share(job: tuple[str, int], case: int, cases: int, counts: tuple[int, ...], offset: int = 0) -> bool:
    """Whether a job runs this case of a test.

    Every job runs one case at least of every test that is meant for its number of ranks. Every case runs in one job at
    least, unless there are too many: then the first ones do. ``counts``: the numbers of ranks that the test
    is meant for. Tests with unequal offsets begin with unequal jobs.
    """
    jobs = [one for one in SHARING if one[1] in counts] or [ALONE]
    if job[1] not in counts or job not in (*SHARING, ALONE):
        return False
    turn = offset + (jobs.index(job) if job in jobs else 0)
    if cases < len(jobs):
        return case == turn % cases
    share = range(turn % len(jobs), cases, len(jobs))
    return case in share[:: -(-len(share) // MOST)]
