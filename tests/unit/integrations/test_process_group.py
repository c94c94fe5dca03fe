"""Process group of torch.distributed that MPI's ranks are."""

import pytest

from grsgd.errors import ConfigError
from grsgd.integrations import process_group


def test_a_group_of_some_ranks_is_refused_because_its_sums_would_be_of_all_ranks():
    group = process_group.MpiProcessGroup(0, 1)
    assert (group.rank(), group.size(), group.getBackendName()) == (0, 1, "grsgd_mpi")
    with pytest.raises(ConfigError, match=r"^torch.distributed.new_group\(\) of 2 of 1 ranks: .*: leave the argument"):
        process_group.MpiProcessGroup(1, 2)
