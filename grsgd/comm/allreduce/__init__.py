"""All-reduce in several variants. Each variant of the all-reduce replaces the array x of every rank, in place, by
``scale`` times the sum of x over all n ranks.

| name              | sent by each rank              | dependent messages | best for                     |
|-------------------|--------------------------------|--------------------|------------------------------|
| ring              | 2(n-1)/n of x                  | 2(n-1)             | large arrays                 |
| halving-doubling  | 2(n-1)/n of x, n a power of 2  | 2 log2 n           | small arrays on many ranks   |
| tree              | up to ceil(log2 n) times x     | 2 log2 n           | comparison with textbooks    |
| swing             | 2(n-1)/n of x                  | 2 log2 n           | rings of cables              |
| bine              | 2(n-1)/n of x, n a power of 2  | 2 log2 n           | rings of cables              |
| mpi               | unknown                        | unknown            | comparison with a library    |
| shared            | 2(n-1)/n of x, in memory       | none               | ranks of one host            |
| hierarchical      | 2(h-1)/h of its part, h hosts  | 2(h-1)             | several ranks per host       |

In every variant, one rank adds up each element of x, in a fixed order, and all other ranks receive a copy of the sum.
The sums of an all-reduce are therefore bit-identical on all ranks and in all runs. Long arrays are sent in pieces that
fit into the cache. While a rank adds a piece that it has received, the next piece is being sent. If two ranks
all-reduce short arrays, each rank sends its whole array and adds the two arrays, which gives the same bits on both
ranks. If the mean of float16 arrays is computed, each array is divided before the sum, so that the sum does not
overflow (`in_range`).

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

from collections import deque
from functools import lru_cache, wraps
from typing import Literal, NamedTuple

from coding.partition import part
from grsgd.comm import tags
from grsgd.comm.allreduce.bine import bine_allreduce
from grsgd.comm.allreduce.by_hosts import allreduce_by_hosts, hosts_of
from grsgd.comm.allreduce.pieces import PIECE_BYTES, add, in_range
from grsgd.comm.allreduce.shared import in_shared_memory, shared_allreduce
from grsgd.comm.allreduce.shared_sums import load_loops
from grsgd.comm.allreduce.swing import swing_allreduce
from grsgd.comm.communicator import Communicator
from grsgd.models.flat import Flat

SHORT_BYTES = 64 * 1024
"""Largest size in bytes of an array that counts as short in all-reduces. Such a short array is all-reduced fast if few
messages must wait for earlier messages, even if more bytes are sent."""


def calculable(schedule):
    """Decorate ``schedule``, an all-reduce, so that a simulator can calculate the time of the all-reduce. If the
    simulator can calculate when the all-reduce ends, the simulator does not simulate the all-reduce's messages one by
    one."""

    @wraps(schedule)
    def begin(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0, **options):
        calculate = getattr(comm.backend, "calculate", None)
        if calculate is None:
            return schedule(comm, x, tag, scale, **options)
        return calculated(calculate, schedule, comm, x, tag, scale, options)

    return begin


def calculated(calculate, schedule, comm: Communicator, x, tag: int, scale: float, options: dict):
    """Generator (schedule) that waits until the all-reduce ``schedule`` ends, at a time that the simulator has
    calculated. If the simulator cannot calculate the time, ``schedule`` is run and its messages are simulated."""
    end = calculate(schedule, comm, x, options)
    if end is None:
        yield from schedule(comm, x, tag, scale, **options)
    else:
        yield end


@in_range
@calculable
def ring_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0, piece_bytes: int = PIECE_BYTES):
    """Generator (schedule) that sums x over n ranks by a reduce-scatter and an all-gather round a ring. The array x
    consists of n chunks, and rank c-1 (modulo n) is the first rank that has the complete sum of chunk c.

    In step s of a ring all-reduce, rank i sends chunk i-s to rank i+1 and receives chunk i-s-1 from rank i-1, modulo n.
    In the first n-1 steps of a ring all-reduce, a rank receives partial sums of chunks, to which it adds its own
    chunks. In the last n-1 steps of a ring all-reduce, a rank receives complete sums of chunks. A chunk is sent in
    pieces, and a rank passes each piece on to its right neighbour as soon as the piece has arrived.

    On two ranks, recursive halving and doubling sends the same messages as the ring all-reduce, and executes less
    Python code. A ring all-reduce of a short array on two ranks therefore calls `halving_doubling_allreduce`.
    """
    n = comm.size
    if n == 1 or x.size == 0:
        return
    if n == 2 and x.nbytes <= 2 * piece_bytes:
        yield from halving_doubling_allreduce(comm, x, tag, scale)
        return
    right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
    plan = ring_plan(comm.rank, n, x.size, max(1, piece_bytes // x.itemsize))
    pieces = [[x[place] for place in chunk] for chunk in plan.places]
    sending = {}

    def send(chunk, k):
        sending[chunk, k] = comm.Isend(pieces[chunk][k], right, tag)

    for k in range(len(pieces[comm.rank])):
        send(comm.rank, k)
    arrivals = deque(plan.arrivals)
    with comm.borrow(x, plan.longest) as even, comm.borrow(x, plan.longest) as odd:
        scratch = deque((even, odd))
        receiving = deque()

        def receive():
            """Start to receive the next piece, of a partial sum into scratch memory, or of a complete sum into x."""
            step, chunk, k = arrivals.popleft()
            place = pieces[chunk][k]
            if step < n - 1:
                scratch.rotate(1)
                incoming = scratch[0][: place.size]
            else:
                incoming = place
                yield sending.pop((chunk, k))  # wait until the partial sum in x has been sent, before it is overwritten
            receiving.append((step, chunk, k, incoming, comm.Irecv(incoming, left, tag)))

        while arrivals or receiving:
            # Two receives, of different pieces of x, are under way, so that a piece arrives while another is added.
            while arrivals and len(receiving) < 2 and not (receiving and receiving[0][1:3] == arrivals[0][1:3]):
                yield from receive()
            step, chunk, k, incoming, message = receiving.popleft()
            yield message
            if step < n - 1:
                pieces[chunk][k] += incoming
            if step == n - 2 and scale != 1:
                pieces[chunk][k] *= scale
            if step < 2 * n - 3:
                send(chunk, k)
    yield sending.values()


class RingPlan(NamedTuple):
    """Plan of the messages of one rank in a ring all-reduce, for all arrays of one length."""

    places: tuple[tuple[slice, ...], ...]
    """Slices of x that are the pieces of each chunk: one tuple of slices per chunk."""
    arrivals: tuple[tuple[int, int, int], ...]
    """(step, chunk, number of the piece in the chunk) of each piece that the rank receives, in the order of
    receiving."""
    longest: int
    """Number of elements of the longest piece of x."""


@lru_cache(maxsize=1024)
def ring_plan(rank: int, n: int, size: int, longest: int) -> RingPlan:
    """Return the plan of ``rank`` in a ring all-reduce of an array of ``size`` elements on ``n`` ranks, with pieces of
    at most ``longest`` elements."""
    places = []
    for begin, end in (part(chunk, n, size) for chunk in range(n)):
        places.append(tuple(slice(first, min(first + longest, end)) for first in range(begin, end, longest)))
    arrivals = [
        (step, (rank - step - 1) % n, k)
        for step in range(2 * (n - 1))
        for k in range(len(places[(rank - step - 1) % n]))
    ]
    return RingPlan(tuple(places), tuple(arrivals), min(longest, -(-size // n)))


def exchange(comm: Communicator, x, tag: int, scale: float):
    """Generator (schedule) that sums the array x over two ranks. Each of the two ranks sends the whole x to the other
    rank, and adds the received array to x.

    The sums have the same bits as the sums of a ring all-reduce, because a + b and b + a have the same bits. In this
    exchange each rank sends one message, while in a ring all-reduce each of the two ranks would send two messages.
    """
    other = 1 - comm.rank
    with comm.borrow(x, x.size) as incoming:
        yield comm.Irecv(incoming, other, tag), comm.Isend(x, other, tag)
        x += incoming
    if scale != 1:
        x *= scale


@in_range
def halving_doubling_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums x over any number n of ranks by a reduce-scatter with recursive halving, and an
    all-gather with recursive doubling (Rabenseifner 2004).

    If n is 2 and x is short, the schedule runs `exchange`, which computes the same sums and sends as many bytes with
    fewer messages.

    If n is not a power of two, only p ranks take part in the halving and doubling, where p is the largest power of two
    below n. Each of the n - p ranks that do not take part sends its array to a partner before the halving, and receives
    the sum from the partner at the end. For each of these n - p ranks, one message with the whole array goes to its
    partner, and one message with the sum comes back.
    """
    n = comm.size
    p = 1 << (n.bit_length() - 1)
    extra = n - p
    if n == 1 or x.size == 0:
        return
    if n == 2 and x.nbytes <= SHORT_BYTES:
        yield from exchange(comm, x, tag, scale)
        return
    if comm.rank < 2 * extra and comm.rank % 2:
        yield comm.Isend(x, comm.rank - 1, tag)
        yield comm.Irecv(x, comm.rank - 1, tag)
        return
    with comm.borrow(x, x.size) as scratch:
        if comm.rank < 2 * extra:
            yield comm.Irecv(scratch, comm.rank + 1, tag)
            add(x, scratch)
        me = comm.rank // 2 if comm.rank < 2 * extra else comm.rank - extra
        begin, end = 0, x.size
        # (partner, half of x that this rank keeps, half of x that this rank sends) for each step of the halving
        halves = []
        distance = p // 2
        while distance:
            partner = me ^ distance
            peer = 2 * partner if partner < extra else partner + extra
            middle = (begin + end) // 2
            kept, given = ((begin, middle), (middle, end)) if me < partner else ((middle, end), (begin, middle))
            halves.append((peer, kept, given))
            incoming = scratch[kept[0] : kept[1]]
            yield comm.Irecv(incoming, peer, tag), comm.Isend(x[given[0] : given[1]], peer, tag)
            add(x[kept[0] : kept[1]], incoming)
            begin, end = kept
            distance //= 2
        if scale != 1:
            x[begin:end] *= scale
        for peer, kept, given in reversed(halves):
            yield comm.Irecv(x[given[0] : given[1]], peer, tag), comm.Isend(x[kept[0] : kept[1]], peer, tag)
        if comm.rank < 2 * extra:
            yield comm.Isend(x, comm.rank + 1, tag)


@in_range
def tree_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums the arrays x of all ranks at rank 0 along a binomial tree of the ranks, and
    broadcasts the sum along the same tree."""
    if comm.size == 1 or x.size == 0:
        return
    parent, children = binomial_tree(comm.rank, comm.size)
    with comm.borrow(x, x.size) as scratch:
        # receive from the child with the smallest subtree first, because its sum is complete first
        for child in reversed(children):
            yield comm.Irecv(scratch, child, tag)
            add(x, scratch)
    if parent is None and scale != 1:
        x *= scale
    if parent is not None:
        yield comm.Isend(x, parent, tag)
    yield from broadcast(comm, x, tag)


def broadcast(comm: Communicator, x, tag: int = tags.ARRAYS, root: int = 0):
    """Generator (schedule) that copies the array x of rank ``root`` to all ranks along a binomial tree."""
    n = comm.size
    parent, children = binomial_tree((comm.rank - root) % n, n)
    if parent is not None:
        yield comm.Irecv(x, (parent + root) % n, tag)
    # send to one child at a time, because parallel sends over one link would delay the child with the largest subtree
    for child in children:
        yield comm.Isend(x, (child + root) % n, tag)


@in_range
def mpi_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums the arrays x of all ranks by the MPI library's own all-reduce. The MPI library
    chooses the algorithm of its all-reduce."""
    if comm.size > 1:
        yield comm.Iallreduce(x)
        if scale != 1:
            x *= scale


@in_range
def hierarchical_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Generator (schedule) that sums x over the ranks of each host through shared memory, and then over the hosts by
    ring all-reduces. An owner is a rank that sums one part of x within its host. For each part of x, the owners of this
    part on all hosts form one ring.

    The arrays of the ranks of one host are added in the order of the ranks, and the hosts' sums are added in the order
    of the ring.
    """
    yield from allreduce_by_hosts(comm, x, tag, scale, across_hosts)


def across_hosts(comm: Communicator, x, tag: int, scale: float):
    """Generator (schedule) that sets x, one owner's part of an array, to ``scale`` times the sum of x over the ranks of
    ``comm``, which are one rank per host."""
    allreduce = halving_doubling_allreduce if x.nbytes <= SHORT_BYTES else ring_allreduce
    yield from allreduce(comm, x, tag, scale)


def get_ready(comm: Communicator, variant: str, x):
    """Load the compiled code that the all-reduce ``variant`` needs for arrays of the dtype of ``x``, so that later time
    measurements do not include the loading."""
    if variant in THROUGH_MEMORY and comm.size > 1 and comm.backend.shares_memory:
        load_loops(x.dtype)


def in_place(comm: Communicator, flat: Flat, variant: str):
    """Generator (schedule), run on all ranks at once, that returns a copy of the vector ``flat`` in memory in which the
    all-reduce ``variant`` can sum it with the fewest copies. If ``variant`` can sum ``flat`` itself with as few copies,
    the schedule returns ``flat`` itself."""
    if variant in ON_ONE_HOST:
        flat = yield from in_shared_memory(comm, flat)
    elif variant in THROUGH_MEMORY:
        hosts = yield from hosts_of(comm, tags.ARRAYS)
        flat = yield from in_shared_memory(hosts.local, flat)
    return flat


ALLREDUCE = {
    "ring": ring_allreduce,
    "halving-doubling": halving_doubling_allreduce,
    "tree": tree_allreduce,
    "swing": swing_allreduce,
    "bine": bine_allreduce,
    "mpi": mpi_allreduce,
    "shared": shared_allreduce,
    "hierarchical": hierarchical_allreduce,
}
"""All variants of the all-reduce by their names in the options. A variant is a schedule ``variant(comm, x, tag,
scale)``, where x is a contiguous one-dimensional array.

On one rank, a variant of the all-reduce does nothing: it neither changes x nor multiplies x by ``scale``.
"""
Variant = Literal["ring", "halving-doubling", "tree", "swing", "bine", "mpi", "shared", "hierarchical", "auto"]
"""Allowed values of an option that chooses a variant of the all-reduce. If the value is ``auto``, a test run of all
variants at the start of the run chooses the fastest variant (`grsgd.algorithms.allreduce_trial`)."""
VARIANT_MEANING = (
    "which all-reduce; shared: for ranks on one host; hierarchical: within hosts, then among hosts; auto: the fastest "
    "in a trial at the start"
)
"""Description of an option that chooses a variant of the all-reduce."""
OUTLIVES_DEATHS = frozenset({"ring", "halving-doubling", "tree", "swing", "bine"})
"""Variants of the all-reduce that can be interrupted when the process of a rank has died. The variants in
`OUTLIVES_DEATHS` use only messages between two ranks, and neither shared memory nor a collective call of the MPI
library."""
NAMED_BY_LIBRARY = frozenset({"mpi"})
"""Variants of the all-reduce whose algorithm is chosen by the MPI library."""
ON_ONE_HOST = frozenset({"shared"})
"""Variants of the all-reduce that work only if all ranks are on one host."""
THROUGH_MEMORY = frozenset({"shared", "hierarchical"})
"""Variants of the all-reduce in which the ranks of one host share memory."""


def binomial_tree(rank: int, n: int) -> tuple[int | None, list[int]]:
    """Return the parent and the children of ``rank`` in a binomial tree of ``n`` ranks. Rank 0 is the root of the tree,
    and its parent is None. The first child in the returned list has the largest subtree."""
    lowest_bit = rank & -rank if rank else 1 << (n - 1).bit_length()
    children = []
    bit = lowest_bit >> 1
    while bit:
        if rank + bit < n:
            children.append(rank + bit)
        bit >>= 1
    return (rank - lowest_bit if rank else None), children
