"""Averages of the models of all living ranks, in a loop that goes on after the death of a process."""

import math

import numpy as np
import torch

from grsgd.comm import tags
from grsgd.comm.allreduce import halving_doubling_allreduce
from grsgd.comm.communicator import ANY_RANK, LostRank, until_over
from grsgd.comm.pollables import Until
from grsgd.own_loop.copying import copy_of

CALL = "averaged_model()"


class JoinedAverages:
    """Averages of ranks that regroup after a death. All ranks compute an average together.

    A death can leave some ranks in a call of `averaged_model`, and other ranks in a step before or after the call. So
    after a regrouping, all ranks at once compute the average for which any rank waits. A rank that has not yet called
    `averaged_model` keeps the result for its own call.

    Calls have numbers, which increase along the loop and are the same on all ranks (`call_number`).
    """

    def __init__(self, loop):
        self.loop = loop
        self.wanted = 0.0
        """Number of the call of `averaged_model` that this rank is in; 0 outside of calls."""
        self.completed = 0.0
        """Number of the last call of `averaged_model` that this rank or other ranks have completed."""
        self.kept: tuple[float, torch.nn.Module | None] = (0.0, None)
        """Number and result of a call of `averaged_model` that this rank has not made yet."""
        self._epoch = loop.recovery.group.epoch
        self._result: torch.nn.Module | None = None

    def start(self):
        """Do nothing, because these averages need no activity in the background."""

    def average(self, number: float):
        """Schedule that returns a copy of the model with the average of the living ranks' models. ``number`` is the
        number of this rank's call.

        A process that has taken a rank may repeat iterations whose calls the other ranks have completed. For such a
        call, the copy has the model of this rank alone.
        """
        (kept, result), self.kept = self.kept, (0.0, None)
        if number > self.completed:
            self.wanted, self._result = number, None
            yield from self.loop.whole(self._join)
            self.wanted, result, kept = 0.0, self._result, number
        return result if result is not None and kept == number else copy_of(self.loop.replica.model, CALL)

    def _join(self):
        if self._result is None:
            self._result = yield from self._compute()
            self.completed = self.wanted

    def _compute(self):
        model, optimizer = copy_of(self.loop.replica.model, CALL), self.loop.distributed
        with torch.no_grad():
            yield from optimizer.average_into(model)
        return model

    def settle(self):
        """Schedule that computes the average for which any rank waits, on all ranks at once, after a regrouping."""
        group = self.loop.recovery.group
        if group.epoch == self._epoch:
            return
        comm = self.loop.algorithm.uncounted_comm
        told = np.zeros((comm.size, 2))
        told[comm.rank] = self.wanted, self.completed
        yield from halving_doubling_allreduce(comm, told.reshape(-1))
        wanted, completed = told.max(0)
        if wanted:
            model = yield from self._compute()
            if self.wanted:
                self._result = model
            if self.wanted < wanted:
                self.kept = wanted, model
        self.completed = max(self.completed, completed, wanted)
        self._epoch = group.epoch


class RequestedAverages:
    """Averages of ranks that never wait for each other. A rank requests the present model of each living rank."""

    def __init__(self, loop):
        self.loop, self.comm = loop, loop.lives.states
        self.membership, self.changing = loop.lives.membership, loop.recovery.changing

    def start(self):
        """Answer the requests of other ranks for this rank's model from now on, in the background."""
        self.loop.beside.start(self._answer())

    def settle(self):
        """Do nothing, because the ranks do not regroup with these algorithms. This method is a schedule."""
        yield from ()

    def average(self, number: float):
        """Schedule that returns a copy of the model with the average of the living ranks' models. If a process dies
        before it has sent its model, its model is left out."""
        model, replica = copy_of(self.loop.replica.model, CALL), self.loop.replica
        weight, *mine = self._mine()
        total, answers = weight[0], 1
        differences = [flat.wide() for flat in mine]
        for process in self._others():
            theirs = np.zeros(1), *(flat.like() for flat in mine)
            try:
                self.comm.Isend(np.array([self.membership.process], np.int64), process, tags.MODEL_REQUEST)
                arrays = theirs[0], theirs[1].array, theirs[2].array
                yield [self.comm.Irecv(array, process, tags.MODEL) for array in arrays]
            except LostRank:
                continue
            total, answers = total + theirs[0][0], answers + 1
            for sums, factor, flat, own in zip(differences, (theirs[0][0], 1.0), theirs[1:], mine, strict=True):
                sums.tensor.add_((flat.tensor - own.tensor).to(sums.tensor.dtype), alpha=factor)
        for flat, sums, divisor in zip(mine, differences, (total, answers), strict=True):
            flat.tensor.add_(sums.tensor / divisor if divisor else 0.0)
        with torch.no_grad():
            self.loop.distributed.put_into(model, *mine)
        replica.follow(model)
        return model

    def _others(self) -> list[int]:
        """Return the processes of the other ranks that have a model. The list begins after this process and wraps
        around."""
        mine, processes = self.membership.process, sorted(self.membership.training)
        holders = [process for process in processes if process in self.membership.holders and process != mine]
        return [each for each in holders if each > mine] + [each for each in holders if each < mine]

    def _mine(self) -> tuple:
        """Return this rank's weight in the average, and copies of its parameters and buffers."""
        loop = self.loop
        with self.changing:
            copies = [flat.like() for flat in (loop.replica.params, loop.replica.buffers)]
            for copy, tensor in zip(copies, loop.recovery.model(), strict=True):
                copy.tensor.copy_(tensor)
            return np.array([loop.algorithm.weight]), *copies

    def _answer(self):
        """Schedule that runs without end in the background, and sends this rank's model to each process that requests
        it."""
        request = np.zeros(1, np.int64)
        while True:
            yield self.comm.Irecv(request, ANY_RANK, tags.MODEL_REQUEST)
            process = int(request[0])
            yield Until(self._is_free, "the end of this rank's change of its model")
            weight, params, buffers = self._mine()
            arrays = weight, params.array, buffers.array
            yield from until_over([self.comm.Isend(array, process, tags.MODEL) for array in arrays])

    def _is_free(self) -> bool:
        if not self.changing.acquire(blocking=False):
            return False
        self.changing.release()
        return True


CALLS_PER_ITERATION = 2.0**20
"""Upper bound of the number of calls of `averaged_model` in an iteration, used for the calls' numbers."""


def call_number(iteration: int, call: int) -> float:
    """Return the number of the call ``call`` (counted from 1) of `averaged_model` in the iteration ``iteration``
    (counted from 0) of a loop."""
    return math.fsum((iteration + 1, call / CALLS_PER_ITERATION))
