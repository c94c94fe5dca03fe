"""Lines about deaths: the lowest living process prints them, once each."""

from grsgd.job.told_deaths import tell_deaths
from tests.support.members import Members


def test_the_lowest_living_process_says_which_rank_has_died_and_which_spare_takes_the_rank(capsys):
    job = Members(3, 1)
    for member in job.living():
        tell_deaths(member)
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
