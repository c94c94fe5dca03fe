"""Broadcasts between simulated ranks. The root (the sending rank) sends one message to all other ranks if the network
has multicast. Without multicast, the root sends one copy to each rank."""

from functools import partial

from grsgd.simulator.messages import Receiving, copy_into
from grsgd.simulator.waitable import Waitable


class SimulatedMulticast:
    """A broadcast from one rank of a group to the group's other ranks through a `MessageFabric`.

    A message longer than ``eager_bytes`` leaves the root when all other ranks have posted their receives for the
    broadcast. The broadcast calls ``done()`` when all ranks except the root have received their copies.
    """

    def __init__(self, fabric, root: int, members: tuple[int, ...], done):
        self.fabric, self.root, self.done = fabric, root, done
        self.others = tuple(rank for rank in members if rank != root)
        self.array = None
        self.short = False
        self.sending = Waitable()
        self.receiving: dict[int, Receiving] = {}
        self.copies = 0
        self.arrived: set[int] = set()

    def send(self, array) -> Waitable:
        self.short = array.nbytes <= self.fabric.network.spec.eager_bytes
        self.array = array.copy() if self.short else array
        self.sending.complete = self.short or not self.others
        self._leave_if_due()
        return self.sending

    def receive(self, rank: int, array) -> Waitable:
        self.receiving[rank] = receiving = self.fabric.receiving_type(array)
        if rank in self.arrived:  # only a message of at most ``eager_bytes`` can arrive before its receive is posted
            copy_into(array, self.array)
            receiving.complete = True
            self._forget_if_over()
        elif not self.short:
            self._leave_if_due()
        return receiving

    def _leave_if_due(self):
        if self.array is None or not (self.short or len(self.receiving) == len(self.others)):
            return
        network = self.fabric.network
        copies = [self.others] if network.has_multicast else [(dest,) for dest in self.others]
        self.copies = len(copies) if self.others else 0
        processor = self.fabric.processor(self.root)
        for dests in copies if self.others else ():
            leave = partial(network.transfer, self.root, dests, self.array.nbytes, Copy(self, dests))
            if processor is not None:
                processor.send(self.array.nbytes, leave)
            else:
                leave()
        self._forget_if_over()

    def copy_left(self, dests: tuple[int, ...]):
        processor = self.fabric.processor(self.root)
        if processor is not None:
            processor.left()
        if not self.short:
            for dest in dests:
                copy_into(self.receiving[dest].array, self.array)
        self.copies -= 1
        if not self.copies and not self.sending.complete:
            self.sending.finish(self.fabric.drivers[self.root])

    def copy_arrived(self, dest: int):
        processor = self.fabric.processor(dest)
        if processor is not None:
            processor.notice(lambda: processor.receive(self.array.nbytes, lambda: self.copy_received(dest)))
        else:
            self.copy_received(dest)

    def copy_received(self, dest: int):
        self.arrived.add(dest)
        if dest in self.receiving:
            if self.short:
                copy_into(self.receiving[dest].array, self.array)
            self.receiving[dest].finish(self.fabric.drivers[dest])
        self._forget_if_over()

    def _forget_if_over(self):
        if len(self.arrived) == len(self.receiving) == len(self.others):
            self.done()


class Copy:
    """One copy of a broadcast on its way to the ranks ``dests``. In a network with multicast, ``dests`` are all ranks
    except the root; in other networks, ``dests`` is one rank."""

    __slots__ = ("multicast", "dests")

    def __init__(self, multicast: SimulatedMulticast, dests: tuple[int, ...]):
        self.multicast, self.dests = multicast, dests

    def on_left(self):
        self.multicast.copy_left(self.dests)

    def on_arrived(self, dest: int, _):
        self.multicast.copy_arrived(dest)
