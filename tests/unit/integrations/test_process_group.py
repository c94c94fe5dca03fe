"""Process group of torch.distributed that MPI's ranks are."""

import re

import pytest
import torch
import torch.distributed as dist

from grsgd.errors import ConfigError
from grsgd.integrations import process_group


def test_a_group_of_some_ranks_is_refused_because_its_sums_would_be_of_all_ranks():
    group = process_group.MpiProcessGroup(0, 1)
    assert (group.rank(), group.size(), group.getBackendName()) == (0, 1, "grsgd_mpi")
    with pytest.raises(ConfigError, match=r"^torch.distributed.new_group\(\) of 2 of 1 ranks: .*: leave the argument"):
        process_group.MpiProcessGroup(1, 2)


def test_every_call_that_the_group_does_not_carry_is_refused_with_a_remedy():
    group = process_group.MpiProcessGroup(0, 1)
    calls = re.compile("_?(all|reduce|gather|scatter|send|recv|broadcast|barrier)")
    found = {name for name in dir(dist.ProcessGroup) if calls.match(name)}
    assert found <= vars(process_group.MpiProcessGroup).keys() | {"monitored_barrier"}
    for method, (function, remedy) in process_group.REFUSED.items():
        with pytest.raises(ConfigError) as refused:
            getattr(group, method)([torch.ones(1)], 0)
        assert str(refused.value).startswith(f"torch.distributed.{function}(): ")
        assert str(refused.value).endswith(f": use {remedy}")
        assert hasattr(dist, function)
        for named in re.findall(r"\b(all_\w+|broadcast\w*)\(\)", remedy):
            assert hasattr(dist, named)
