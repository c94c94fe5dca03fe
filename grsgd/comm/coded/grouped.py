"""Two schemes in which the ranks form groups, and all members of a group compute one block (the gradient of a set of
samples). Both schemes were designed in this project."""

from coding.fixed_point import accumulate
from coding.placement import GroupedPlacement, number_of_groups
from coding.plan import Packet
from grsgd.comm.coded.scheme import Scheme


class GroupedDirect(Scheme):
    """A scheme in which all members of a group compute one block. The block of a group with m members has m parts.
    Member k of the group multicasts part k of the block to the ranks of all other groups."""

    def assign_blocks(self):
        self.placement = GroupedPlacement(self.n, number_of_groups(self.n, self.r))
        self.blocks = [self.placement.group(self.rank)]
        self.num_blocks = self.placement.q

    def sent(self):
        if self.placement.q > 1:
            yield self.packet(self.rank)

    def received(self):
        return (self.packet(rank) for rank in self.others(self.placement.group(self.rank)))

    def packet(self, sender: int) -> Packet:
        group = self.placement.group(sender)
        return Packet(sender, self.others(group), group, (group,), (sender - self.placement.members(group).start,))

    def others(self, group: int) -> tuple[int, ...]:
        """Return the ranks that are not members of group number ``group``."""
        members = self.placement.members(group)
        return tuple(rank for rank in range(self.n) if rank not in members)

    def span(self, packet):
        return self.placement.part(packet.sender, self.length)

    def other_holders(self, packet):
        return [rank for rank in self.placement.members(packet.blocks[0]) if rank != packet.sender]


class GroupedReduceScatter(Scheme):
    """A scheme with the groups of `GroupedDirect`, in which a block has n chunks, one chunk per rank. Every group sends
    chunk j of its block to rank j. Rank j adds up chunk j of all groups' blocks, and multicasts the sum to all
    other ranks."""

    sends_sums = True

    def assign_blocks(self):
        self.placement = GroupedPlacement(self.n, number_of_groups(self.n, self.r))
        self.blocks = [self.placement.group(self.rank)]
        self.num_blocks = self.placement.q

    def sent(self):
        return (packet for packet in self.all_packets() if packet.sender == self.rank)

    def received(self):
        return (packet for packet in self.all_packets() if self.rank in packet.receivers)

    def all_packets(self):
        """Yield the packets of all ranks in the order in which they are sent. The packets of chunk j have the number j.

        One member of each other group sends chunk j of the group's block to rank j, the owner of the chunk. The last
        packet of chunk j carries the sum of the chunk from the owner to all other ranks.
        """
        if self.placement.q == 1:
            return
        for owner in range(self.n):
            for group in range(self.placement.q):
                if group != self.placement.group(owner):
                    yield Packet(self.placement.sender(group, owner), (owner,), owner, (group,), (owner,))
            others = tuple(rank for rank in range(self.n) if rank != owner)
            yield Packet(owner, others, owner, tuple(range(self.placement.q)), (owner,))

    def span(self, packet):
        return self.placement.chunk(packet.number, self.length)

    def source(self, packet):
        return self.block_buffers

    def add_up(self):
        self.total.fill(0)
        begin, end = self.placement.chunk(self.rank, self.length)
        accumulate(self.total[begin:end], self.block_buffers[begin:end])
        yield from self.exchange([packet for packet in self.packets if len(packet.blocks) == 1])
        if self.placement.q == 1:
            accumulate(self.total[:begin], self.block_buffers[:begin])
            accumulate(self.total[end:], self.block_buffers[end:])
            return
        finished = self.block_buffers[begin:end]  # the sum overwrites this rank's own chunk
        self.wrap(self.total[begin:end], finished)
        self.total[begin:end] = finished  # all other ranks receive the values in `finished`
        yield from self.exchange([packet for packet in self.packets if len(packet.blocks) > 1])
