"""What `distribute` checks of a script that grsgd did not write, before training and in every step."""

import numpy as np
import torch

from grsgd.comm.communicator import ANY_RANK
from grsgd.replica import Replica

TAG = 1


def check_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, sends_gradients: bool):
    """Raise ValueError if ``optimizer`` cannot train ``model`` together with other ranks."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS calls its closure several times a step; distribute() takes optimizers that need none")
    if isinstance(optimizer, torch.optim.SparseAdam) and sends_gradients:
        raise ValueError("SparseAdam needs sparse gradients; this algorithm sends gradients, and dense ones only")
    models = {id(p) for p in model.parameters()}
    others = [tuple(p.shape) for group in optimizer.param_groups for p in group["params"] if id(p) not in models]
    if others:
        raise ValueError(
            f"{len(others)} of the parameters of {name} are not the model's (the first has shape {others[0]}): "
            "give distribute() one module that holds all that is trained"
        )


def check_memory(model: torch.nn.Module):
    """Raise ValueError if two parameters, one of them trained, lie in one memory; to share a Parameter is allowed."""
    spans = sorted(
        (p.data_ptr(), p.data_ptr() + extent(p), name, p.requires_grad)
        for name, p in model.named_parameters()
        if p.numel()
    )
    last = None
    for span in spans:
        if last is not None and span[0] < last[1] and (span[3] or last[3]):
            raise ValueError(
                f"parameters {last[2]!r} and {span[2]!r} lie in one memory: tie them by one Parameter "
                "(decoder.weight = encoder.weight)"
            )
        if last is None or span[1] > last[1]:
            last = span


def extent(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class InPlace:
    """Sees to it that ``replica``'s model stays what and where it was: the ranks share the flat arrays, not the model.

    It looks at the modules' own tables, at about 0.1 microseconds a parameter.
    """

    def __init__(self, replica: Replica):
        modules = list(replica.model.modules())
        flat = {id(p) for p in replica.trained}
        named = [(module._parameters, name) for module in modules for name, p in module._parameters.items()]
        self._parameters = [(owner, name) for owner, name in named if owner[name] is not None]
        self._trained = [(owner, name) for owner, name in self._parameters if id(owner[name]) in flat]
        self._addresses = [owner[name].data_ptr() for owner, name in self._trained]
        self._requires = [owner[name].requires_grad for owner, name in self._parameters]
        self._names = {id(p): name for name, p in replica.model.named_parameters()}
        self._known = [self._names[id(owner[name])] for owner, name in self._trained]
        self._owned = [self._names[id(owner[name])] for owner, name in self._parameters]

    def check(self):
        """Raise RuntimeError if trained parameters have new memory, or others require a gradient than before."""
        try:
            if [owner[name].data_ptr() for owner, name in self._trained] == self._addresses and [
                owner[name].requires_grad for owner, name in self._parameters
            ] == self._requires:
                return
        except (KeyError, AttributeError):  # taken away, or None
            pass
        for (owner, name), address, called in zip(self._trained, self._addresses, self._known, strict=True):
            if owner.get(name) is None:
                raise RuntimeError(f"parameter {called!r} was taken from the model after distribute()")
            if owner[name].data_ptr() != address:
                raise RuntimeError(
                    f"parameter {called!r} was given new memory after distribute() (model.to(), p.data = ..., "
                    "load_state_dict(assign=True), ...): do that before, or write into the old with p.data.copy_()"
                )
        for (owner, name), required, called in zip(self._parameters, self._requires, self._owned, strict=True):
            if owner.get(name) is not None and owner[name].requires_grad != required:
                what = "frozen" if required else "unfrozen"
                raise RuntimeError(
                    f"parameter {called!r} was {what}: requires_grad must not change after distribute(); "
                    "call finish(), then distribute() again"
                )


class LastSteps:
    """Word from each rank to all others that it has taken its last step, and how many there were.

    An algorithm in which all ranks take the same number of steps would else wait for a rank that comes no more.
    ``comm`` is used for nothing else with tag 1.
    """

    def __init__(self, comm, algorithm: str):
        self.comm, self.algorithm = comm, algorithm
        self.step = 0
        """The step under way on this rank, from 1; 0 between two steps."""
        self._steps: dict[int, int] = {}
        """By rank that has taken its last."""

    def watch(self):
        """Called while this rank waits; raises RuntimeError if it waits in a step that another rank will not take."""
        while self.step and self.comm.Iprobe(ANY_RANK, TAG):
            word = np.zeros(2, np.int64)
            message = self.comm.Irecv(word, ANY_RANK, TAG)
            while not message.Test():  # it is here already: a probe found it
                pass
            self._note(word)
        for rank, steps in self._steps.items():
            if self.step > steps:
                raise RuntimeError(
                    f"rank {rank} finished after {steps} steps, rank {self.comm.rank} is in step {self.step}: "
                    f"{self.algorithm} needs the same number of steps on all ranks"
                )

    def say(self, steps: int):
        """Tell all others that this rank has taken its last step; returns what `hear` has to wait for, too."""
        self.step = 0
        word = np.array([self.comm.rank, steps], np.int64)
        return [self.comm.Isend(word, rank, TAG) for rank in range(self.comm.size) if rank != self.comm.rank]

    def hear(self, sent):
        """Schedule: until all ranks have said so."""
        yield sent
        while len(self._steps) < self.comm.size - 1:
            word = np.zeros(2, np.int64)
            yield self.comm.Irecv(word, ANY_RANK, TAG)
            self._note(word)

    def _note(self, word):
        self._steps[int(word[0])] = int(word[1])
