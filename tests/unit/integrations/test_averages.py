"""Average of all ranks' models in place of this rank's model."""

import pytest
import torch

from grsgd.integrations.averages import AverageInPlace


class Optimizer:
    """Distributed optimizer whose average model is zero."""

    def __init__(self):
        self.model = torch.nn.BatchNorm1d(3)

    def rest(self):
        """No message is under way."""

    def averaged_model(self):
        average = torch.nn.BatchNorm1d(3)
        for tensor in (*average.parameters(), *average.buffers()):
            tensor.data.zero_()
        return average


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_this_ranks_model_is_back_after_the_block_also_after_an_error(error):
    average, optimizer = AverageInPlace(), Optimizer()
    average.distributed = [optimizer]
    before = [tensor.clone() for tensor in average.tensors()]
    try:
        with average.in_place():
            assert not any(tensor.any() for tensor in average.tensors())
            if error:
                raise error
    except (ValueError, KeyboardInterrupt) as found:
        assert isinstance(found, error)
    assert average.own is None and all(map(torch.equal, average.tensors(), before))
