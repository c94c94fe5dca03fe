"""Recovery in which a new process takes the rank of a dead process, and starts with the model of another rank."""

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import ANY_RANK, Communicator, LostRank, until_over
from grsgd.comm.driver import Driver
from grsgd.comm.elastic.membership import Membership
from grsgd.comm.pollables import Until
from grsgd.training.recovery import Recovery
from grsgd.training.surviving import Surviving

STATE_NUMBERS = 3
"""Number of float64 values at the beginning of a message to a new process, before the ranks' numbers of samples. The
float64 values are the sender's step, the seconds since the run began, and the number of marks (points at which
snapshots are due) that the sender has passed."""


class Succession(Surviving):
    """Recovery of a rank that goes on training without dead ranks, and sends its state to processes that take a dead
    rank.

    Parameters
    ----------
    membership
        Process of each rank.
    comm
        Communicator of all processes; it carries only messages of this class.
    driver
        Driver that runs schedules in the background: see `grsgd.comm.driver`.
    checkpoints
        Recovery object that takes the run's checkpoints; by default no checkpoints are taken.
    """

    def __init__(
        self, membership: Membership, comm: Communicator, driver: Driver, checkpoints: Recovery | None = None
    ):
        super().__init__(membership, checkpoints)
        self.comm, self.driver = comm, driver

    def give(self):
        """Send the state of this rank to every process that requests it, in an endless loop. This method is a generator
        (schedule) that the rank's driver (event loop) runs in the background."""
        request = np.zeros(1, np.int64)
        while True:
            yield self.comm.Irecv(request, ANY_RANK, tags.STATE_REQUEST)
            process = int(request[0])
            yield Until(self._is_steady, "the end of this rank's step")
            state = self._state()
            if self.trainer.hands_over:
                content = yield from self.trainer.content()
                state = *state, np.array([content.size]), content
            yield from until_over([self.comm.Isend(array, process, tags.STATE) for array in state])

    def take_over(self):
        """Request the state of a neighbour, and set this rank's state to the received state. A process that has just
        taken over a rank runs this schedule (generator).

        Raises LostRank if no remaining process has a model.
        """
        trainer, membership = self.trainer, self.membership
        replica, progress = trainer.replica, trainer.progress
        replica.note_buffers()
        numbers = np.zeros(membership.size + STATE_NUMBERS)
        while True:
            giver = self._giver()
            messages = [self.comm.Isend(np.array([membership.process], np.int64), giver, tags.STATE_REQUEST)]
            arrays = (numbers, replica.params.array, replica.buffers.array)
            messages += [self.comm.Irecv(array, giver, tags.STATE) for array in arrays]
            try:
                yield messages
                content = (yield from self._content(giver)) if trainer.hands_over else None
                break
            except LostRank:
                continue
        step, marks = int(numbers[0]), int(numbers[2])
        progress.take(numbers[STATE_NUMBERS:])
        progress.elapsed_before = numbers[1]
        progress.marks.passed = marks
        trainer.take_place(int(progress.counts[membership.rank]) // progress.samples_per_step, marks)
        trainer.algorithm.k = step
        if content is not None:
            trainer.load(content)
        membership.begin()

    def _content(self, giver: int):
        """Receive from process ``giver`` the training loop's own state, besides model, optimizer and progress, as
        bytes. This method is a generator (schedule) that the rank's driver (event loop) runs."""
        size = np.zeros(1, np.int64)
        yield self.comm.Irecv(size, giver, tags.STATE)
        content = np.zeros(int(size[0]), np.uint8)
        yield self.comm.Irecv(content, giver, tags.STATE)
        return content

    def _giver(self) -> int:
        """Return the number of the process from which this process requests a model. The result is the process of a
        neighbour or, if no neighbour has a model, any process that has a model."""
        membership, rank = self.membership, self.membership.rank
        topology = self.trainer.algorithm.topology
        neighbours = topology.in_neighbours(rank, without=membership.vacant)
        for candidates in (neighbours, range(membership.size)):
            for holder in (membership.holders[other] for other in candidates if other != rank):
                if holder is not None and holder not in membership.dead and holder in membership.training:
                    return holder
        raise LostRank(f"rank {rank} was taken over, but no process is left that has a model")

    def _is_steady(self) -> bool:
        """Return True if the training thread is not changing the model at present."""
        if not self.changing.acquire(blocking=False):
            return False
        self.changing.release()
        return True

    def _state(self) -> tuple:
        trainer = self.trainer
        with self.changing:
            copies = []
            for flat, tensor in zip((trainer.replica.params, trainer.replica.buffers), self.model(), strict=True):
                copies.append(flat.like())
                copies[-1].tensor.copy_(tensor)
            progress = trainer.progress
            numbers = [trainer.algorithm.k, progress.elapsed(), progress.marks.passed, *progress.counts]
        return np.array(numbers, np.float64), *(copy.array for copy in copies)

    def started(self):
        """Record that the algorithm has started. A process that has taken a dead rank keeps the state that it has
        received, and does not load a checkpoint."""
        if self.membership.process < self.membership.size:
            super().started()

    def begun(self):
        """Start to send this rank's state to processes that request it. The state contains the time since the run's
        start, which is not known before this call. Tell the algorithm which ranks have no process at present."""
        self.checkpoints.begun()
        self.driver.start(self.give())
        self.membership.on_change.append(self._changed)
        for rank in self.membership.vacant:
            self._changed(rank)

    def _changed(self, rank: int):
        self.trainer.algorithm.changed(rank)
        self.trainer.stop_signal.repeat(rank)
