"""Communicators that remember, to find out at the end whether every message has been received."""

import time

import numpy as np

from grsgd.comm.communicator import Communicator


class Recorded(Communicator):
    """A communicator that keeps its messages, and those of the parts of it, to ask them afterwards."""

    def __init__(self, backend, members=None, traffic=None):
        super().__init__(backend, members, traffic)
        self.sent, self.received, self.collective, self.parts = [], [], [], []
        self.freed = False

    def Isend(self, *args, **kwargs):
        return self.keep(self.sent, super().Isend(*args, **kwargs))

    def Issend(self, *args, **kwargs):
        return self.keep(self.sent, super().Issend(*args, **kwargs))

    def Irecv(self, *args, **kwargs):
        return self.keep(self.received, super().Irecv(*args, **kwargs))

    def Iallreduce(self, *args, **kwargs):
        return self.keep(self.collective, super().Iallreduce(*args, **kwargs))

    def Ibcast(self, *args, **kwargs):
        return self.keep(self.collective, super().Ibcast(*args, **kwargs))

    def subset(self, ranks):
        part = super().subset(ranks)
        return self.keep(self.parts, Recorded(part.backend, part.members, part.traffic))

    def free(self):
        """Not before its messages have been looked at: see ``close``."""
        self.freed = True

    def close(self):
        """Free this and the parts; collective."""
        for one in (*self.parts, self):
            one.backend.free()

    def keep(self, where, message):
        where.append(message)
        return message

    def messages(self) -> list:
        own = self.sent + self.received + self.collective
        return own + [message for part in self.parts for message in part.messages()]


def check_messages(world, comm: Recorded, what: str):
    """Every message that was sent to this rank has been received, and nothing else is expected or has come."""
    from mpi4py import MPI

    deadline = time.perf_counter() + 5
    for message in comm.messages():
        while not message.Test():
            assert time.perf_counter() < deadline, f"{what}: not complete at the end: {message}"
    sent = np.bincount([message.peer for message in comm.sent], minlength=comm.size)
    to_me = world.allreduce(sent)[comm.rank]
    assert to_me == len(comm.received), f"{what}: {to_me} messages were sent here, {len(comm.received)} received"
    world.Barrier()
    assert not comm.backend.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG), f"{what}: a message is left"


def check_traffic(world, comm: Recorded, algorithm):
    """Where every message has an answer of the same size, the traffic is symmetric."""
    name, options = algorithm.name, algorithm.options
    if getattr(options, "compression", None) is not None:  # of gradients, which are answered by models
        return
    served = name == "easgd" and options.centre == "server"
    if name in ("adpsgd", "asgd", "parameter_server") or served or (name == "gossip" and options.mode == "pair"):
        traffic = np.array(world.allgather(comm.traffic.sent))
        assert (traffic == traffic.T).all(), f"one half of an exchange is missing:\n{traffic}"
