"""Places of the ranks of a job."""

from grsgd.job.places import other_hosts

PROCESSES = [("a pid:[1]", 1), ("b pid:[1]", 1), ("a pid:[1]", 2), ("b pid:[1]", 2), ("c pid:[1]", 1)]


def test_hosts_of_which_all_ranks_are_missing():
    assert other_hosts(PROCESSES, 0, {1, 2, 3}) == {"b": [1, 3]}
    assert other_hosts(PROCESSES, 0, {1, 4}) == {"c": [4]}
    assert other_hosts(PROCESSES, 1, {1, 3}) == {}, "this rank's host is there"
