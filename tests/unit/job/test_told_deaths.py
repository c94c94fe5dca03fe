"""Lines about deaths: the lowest living process prints them, once each."""

from grsgd.job.told_deaths import ToldDeaths
from tests.support.members import Members


def job_that_tells(ranks: int, spares: int) -> Members:
    job = Members(ranks, spares)
    for member in job.living():
        ToldDeaths(member)
    return job


def test_the_lowest_living_process_says_which_rank_has_died_and_which_spare_takes_the_rank(capsys):
    job = job_that_tells(3, 1)
    job.fabric.kill(1)
    job.settle()
    died, taken = capsys.readouterr().err.split("\n\n")
    assert died.strip() == "grsgd: rank 1: its process has died; 2 ranks left"
    assert taken.strip() == "grsgd: rank 1: process 3, a spare, has taken this rank"
    job.fabric.kill(0)
    job.settle()
    assert capsys.readouterr().err.strip() == "grsgd: rank 0: its process has died; 2 ranks left"
    job.fabric.kill(2)
    job.settle()
    assert capsys.readouterr().err.strip() == "grsgd: rank 2: its process has died; 1 rank left"


def test_a_spare_that_is_heard_of_before_the_death(capsys):
    job = job_that_tells(2, 1)
    first = job.members[0]
    first._hold(1, 2)
    lines = capsys.readouterr().err.split("\n\n")
    assert [line.strip() for line in lines] == [
        "grsgd: rank 1: its process has died; 2 ranks left",
        "grsgd: rank 1: process 2, a spare, has taken this rank",
    ]
    first.note_death(1)
    assert not capsys.readouterr().err
