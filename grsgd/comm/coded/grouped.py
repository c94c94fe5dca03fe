"""Schemes in which the ranks form groups, and all members of a group hold the same block. These schemes are from this
project, not from a paper."""

from coding.fixed_point import accumulate
from coding.placement import GroupedPlacement, number_of_groups
from coding.plan import Packet
from grsgd.comm.coded.scheme import Scheme


class GroupedDirect(Scheme):
    """All members of a group compute the same block. A group has m members, and its block has m parts. Member k
    multicasts part k of the block to all other groups."""

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
        """Return the ranks of all other groups."""
        members = self.placement.members(group)
        return tuple(rank for rank in range(self.n) if rank not in members)

    def span(self, packet):
        return self.placement.part(packet.sender, self.length)

    def other_holders(self, packet):
        return [rank for rank in self.placement.members(packet.blocks[0]) if rank != packet.sender]


class GroupedReduceScatter(Scheme):
    """Groups as in `GroupedDirect`, but a block has n chunks, one per rank. Every group sends chunk j of its block to
    rank j. Rank j sums the chunks j of all groups and multicasts the sum."""

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
        """Yield the packets of chunk j, which have number j.

        One member of each other group sends its group's chunk j to rank j, the owner. Then the owner sends the sum to
        all other ranks.
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
