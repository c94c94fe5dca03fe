"""Simulated processes that may die and that do not train, for tests of `Membership`."""

from grsgd.comm.elastic.membership import MembersBackend, Membership
from grsgd.testing.simulated import Ranks


class Members(Ranks):
    """Processes of which the first ``n`` hold ranks. All processes except spares look for deaths from the beginning."""

    def __init__(self, n: int, spares: int, random=None):
        super().__init__(n + spares, random=random)
        self.members = [Membership(comm, n, self.drivers[0].clock, look_seconds=0) for comm in self.comms]
        self.ends = [
            MembersBackend(comm.backend, member)
            for comm, member in zip(self.fabric.communicators(), self.members, strict=True)
        ]
        for driver, member in zip(self.drivers, self.members, strict=True):
            driver.polls_messages = True
            driver.start(member.attend())
        self.waiting = {p: self.drivers[p].start(self.members[p].stand_by()) for p in range(n, n + spares)}

    def living(self) -> list[Membership]:
        return [member for member in self.members if member.process not in self.fabric.dead]
