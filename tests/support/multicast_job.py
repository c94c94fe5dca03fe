"""A coded scheme of `cssgd` over IP multicast, on ranks in one thread whose datagrams the test delivers."""

import numpy as np

from coding.fixed_point import FixedPoint
from grsgd.comm.coded import ip_multicast
from grsgd.comm.coded.datagrams import KEY_BYTES, RUN_BYTES, Seal
from grsgd.comm.coded.ip_multicast import IpMulticast
from grsgd.comm.coded.multicast_link import Link, Settings
from grsgd.comm.coded.schemes import SCHEMES
from grsgd.comm.coded.without_redundancy import LocalSum, PerBlock
from tests.support.polled_ranks import Post, PostSockets
from tests.support.random_blocks import SUMS_ARE_SENT

KINDS = SCHEMES | {"per-block": PerBlock, "local-sum": LocalSum}
PART = 64
SEAL = Seal(bytes(RUN_BYTES), bytes(KEY_BYTES))
RATE = 1e7


def as_it_is(datagram):
    return [datagram]


class Job:
    """A coded scheme on n ranks that are connected by a `Post`."""

    def __init__(self, monkeypatch, kind, n, r, length, carry=as_it_is, sockets=PostSockets, **settings):
        self.post = Post(n, carry)
        self.comms = self.post.communicators()
        self.sockets = [sockets(self.post, rank) for rank in range(n)]

        def connect(comm, settings):
            yield from ()
            return Link(self.sockets[comm.rank], SEAL, list(range(n)), PART, PostSockets.room)

        monkeypatch.setattr(ip_multicast, "connect", connect)
        settings = Settings(**{"rate": RATE} | settings)
        self.transports = [IpMulticast(comm, settings, self.post.clock) for comm in self.comms]
        self.schemes = [
            KINDS[kind](transport, n, r, rank, length, FixedPoint(), np.empty)
            for rank, transport in enumerate(self.transports)
        ]
        self.length, self.num_blocks = length, self.schemes[0].num_blocks
        self.top = 2**31 // self.num_blocks if kind in SUMS_ARE_SENT else 2**31
        self.post.finish([scheme.open() for scheme in self.schemes])

    def fill(self, random) -> np.ndarray:
        """Fill all blocks of all ranks with random numbers. Return the sum of the blocks."""
        blocks = random.integers(-self.top, self.top, (self.num_blocks, self.length)).astype(np.int32)
        for scheme in self.schemes:
            for k, block in enumerate(scheme.blocks):
                scheme.block_buffer(k)[:] = blocks[block]
        return blocks.sum(0, dtype=np.int64)

    def check(self, random, steps: int = 2, seconds: float = 1e-4):
        """Compare the sums of ``steps`` steps with the expected sums. ``seconds``: seconds of the job's clock between
        two polls."""
        for _ in range(steps):
            expected = self.fill(random)
            self.post.finish([scheme.add_up() for scheme in self.schemes], seconds=seconds)
            for scheme in self.schemes:
                np.testing.assert_array_equal(scheme.total, expected)

    def close(self):
        self.post.finish([scheme.close() for scheme in self.schemes])
        assert all(sockets.is_closed for sockets in self.sockets)
        assert not any(self.post.messages.values()), "messages that no rank has received"
