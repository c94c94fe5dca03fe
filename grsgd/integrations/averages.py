"""Average of all ranks' models, which takes the place of this rank's model while a library validates or saves the
model."""

from collections.abc import Iterable
from contextlib import contextmanager

import torch

from grsgd.integrations import collective
from grsgd.own_loop.distributed_optimizer import DistributedOptimizer


class AverageInPlace:
    """Average of all ranks' models, which can take the place of this rank's model for a while."""

    def __init__(self):
        self.distributed: list[DistributedOptimizer] = []
        """Optimizers of the training that is under way, or of the last training."""
        self.own: list[torch.Tensor] | None = None
        """Copies of this rank's tensors while the average is in the models; None while the average is not in the
        models."""

    def tensors(self) -> list[torch.Tensor]:
        """Return the parameters, then the buffers, of all models in training."""
        return tensors_of(optimizer.model for optimizer in self.distributed)

    @torch.no_grad()
    def put(self):
        """Write the average of all ranks' models into the models. All ranks must call this method between two steps.

        All messages under way are received first, so that no later message changes the average.
        """
        for optimizer in self.distributed:
            optimizer.rest()
        averaged = tensors_of([optimizer.averaged_model() for optimizer in self.distributed])
        self.own = [tensor.clone() for tensor in self.tensors()]
        copy_into(self.tensors(), averaged)

    def put_own(self):
        """Write this rank's own tensors back into the models, if the average of all ranks is in the models. All ranks
        must call this method.

        All ranks leave this call together. So no message of a faster rank arrives while the average is still in a
        model.
        """
        if self.own is not None:
            self._copy_own()
            collective.barrier("after the average model was in use")

    @contextmanager
    def in_place(self):
        """Write the average of all ranks' models into the models during the block. All ranks must enter the block.

        If the block raises an error, this rank's tensors are written back without a wait for the other ranks.
        """
        self.put()
        try:
            yield
        except BaseException:
            self._copy_own()
            raise
        self.put_own()

    def _copy_own(self):
        own, self.own = self.own, None
        copy_into(self.tensors(), own)


def tensors_of(models: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the parameters of all ``models``, then the buffers of all ``models``."""
    models = list(models)
    parameters = [parameter for model in models for parameter in model.parameters()]
    return parameters + [buffer for model in models for buffer in model.buffers()]


@torch.no_grad()
def copy_into(tensors: list[torch.Tensor], contents: list[torch.Tensor]):
    """Copy each tensor of ``contents`` into the tensor with the same position in ``tensors``."""
    for tensor, content in zip(tensors, contents, strict=True):
        tensor.copy_(content)
