"""Two coded schemes in which the ranks form groups, and all members of a group compute the same block (the gradient of
a set of samples). The two schemes `GroupedDirect` and `GroupedReduceScatter` were designed in this project."""

from coding.fixed_point import accumulate
from coding.placement import GroupedPlacement, number_of_groups
from coding.plan import Packet
from grsgd.comm.coded.scheme import Scheme


class GroupedDirect(Scheme):
    """A coded scheme in which all members of a group compute the same block. The block of a group with m members is
    divided into m parts. Member number k of a group multicasts part k of the group's block to the ranks of all other
    groups."""

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
        """Return the ranks that are not members of the group with number ``group``."""
        members = self.placement.members(group)
        return tuple(rank for rank in range(self.n) if rank not in members)

    def span(self, packet):
        return self.placement.part(packet.sender, self.length)

    def other_holders(self, packet):
        return [rank for rank in self.placement.members(packet.blocks[0]) if rank != packet.sender]


class GroupedReduceScatter(Scheme):
    """A coded scheme with the groups of `GroupedDirect`, in which a block has n chunks, one chunk per rank. One member
    of every other group sends chunk j of its group's block to rank j. Rank j adds up chunk j of the blocks of all
    groups, and multicasts the sum to all other ranks."""

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
        """Yield the packets that all ranks send in a step, in the order of sending. Every packet with elements of chunk
        j has the number j.

        From each group of which rank j is no member, one member sends chunk j of the group's block to rank j, the owner
        of the chunk. In the last packet of chunk j, the owner sends the sum of the chunk to all other ranks.
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
        # the sum overwrites chunk number `rank` of this rank's block, which is no longer needed
        finished = self.block_buffers[begin:end]
        self.wrap(self.total[begin:end], finished)
        self.total[begin:end] = finished  # use the values in `finished`, because all other ranks receive these values
        yield from self.exchange([packet for packet in self.packets if len(packet.blocks) > 1])
