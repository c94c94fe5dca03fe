"""All-reduce in several variants. Each variant sets the array x to ``scale`` times the sum of x over all n ranks, in
place.

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

One rank computes the sum of each element, in a fixed order, and the sum is copied to the other ranks. So the sums are
bit-identical on all ranks and in all runs. Long arrays are sent in pieces that fit into the cache. A rank adds a piece
while the piece is still in the cache and the next piece is under way. Two ranks exchange short arrays as a whole, and
each rank adds the two arrays, with the same bits. To compute a mean of float16 arrays, each array is divided before the
sum (`in_range`).

A schedule is a generator that yields each object it waits for.
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
"""Largest size in bytes of a short array. For a short array, fewer dependent messages save more time than fewer bytes
or fewer additions."""


def calculable(schedule):
    """Decorate ``schedule``, an all-reduce, for simulations. If the simulator can calculate when the all-reduce ends,
    the simulator does not simulate the messages of the all-reduce."""

    @wraps(schedule)
    def begin(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0, **options):
        calculate = getattr(comm.backend, "calculate", None)
        if calculate is None:
            return schedule(comm, x, tag, scale, **options)
        return calculated(calculate, schedule, comm, x, tag, scale, options)

    return begin


def calculated(calculate, schedule, comm: Communicator, x, tag: int, scale: float, options: dict):
    """Schedule that waits until the end of ``schedule`` that the simulator has calculated. If the simulator cannot
    calculate the end, ``schedule`` is run."""
    end = calculate(schedule, comm, x, options)
    if end is None:
        yield from schedule(comm, x, tag, scale, **options)
    else:
        yield end


@in_range
@calculable
def ring_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0, piece_bytes: int = PIECE_BYTES):
    """Schedule that sums x over n ranks by a reduce-scatter and an all-gather round a ring. The array x consists of n
    chunks, and rank c-1 computes the sum of chunk c.

    In step s, rank i sends chunk i-s to the right and receives chunk i-s-1 from the left. In the first n-1 steps, a
    rank receives partial sums, to which it adds its own chunks. In the last n-1 steps, a rank receives finished sums. A
    chunk is sent in pieces, and a rank sends each piece on as soon as the piece has arrived.

    On two ranks, recursive halving and doubling sends the messages of the ring, and executes less Python code. So
    `halving_doubling_allreduce` is used for short arrays on two ranks.
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
            """Start the next receive. A partial sum is received into scratch memory, and a finished sum into x."""
            step, chunk, k = arrivals.popleft()
            place = pieces[chunk][k]
            if step < n - 1:
                scratch.rotate(1)
                incoming = scratch[0][: place.size]
            else:
                incoming = place
                yield sending.pop((chunk, k))  # the partial sum must have been sent before it is overwritten
            receiving.append((step, chunk, k, incoming, comm.Irecv(incoming, left, tag)))

        while arrivals or receiving:
            # Two receives are under way, so that one piece is added while the next piece arrives. Two receives under
            # way are never for one place in x.
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
    """Return the plan of ``rank`` in ring all-reduces on ``n`` ranks of arrays of ``size`` elements, in pieces of at
    most ``longest`` elements."""
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
    """Schedule that sums x over two ranks. Each of the two ranks sends the whole x to the other rank, and adds the
    received array to x.

    The sums equal the sums of a ring or of halving and doubling, because a + b equals b + a bit for bit. Each rank
    sends one message, and would send two messages in a ring or in halving and doubling.
    """
    other = 1 - comm.rank
    with comm.borrow(x, x.size) as incoming:
        yield comm.Irecv(incoming, other, tag), comm.Isend(x, other, tag)
        x += incoming
    if scale != 1:
        x *= scale


@in_range
def halving_doubling_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Schedule that sums x over any number n of ranks by a reduce-scatter with recursive halving, and an all-gather
    with recursive doubling (Rabenseifner 2004).

    If n is 2 and x is short, `exchange` is used, which computes equal sums and sends equally many bytes.

    If n is no power of two, only p ranks take part in the halving and doubling, where p is the largest power of two
    below n. Each of the other n - p ranks first sends its array to a partner, and finally receives the sum from the
    partner. So n - p pairs of ranks send one more array in each direction.
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
        halves = []  # (partner, kept part of x, given part of x), largest parts first
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
    """Schedule that sums x at rank 0 along a binomial tree of the ranks, and broadcasts the sum along the tree."""
    if comm.size == 1 or x.size == 0:
        return
    parent, children = binomial_tree(comm.rank, comm.size)
    with comm.borrow(x, x.size) as scratch:
        for child in reversed(children):  # the child with the smallest subtree is ready first
            yield comm.Irecv(scratch, child, tag)
            add(x, scratch)
    if parent is None and scale != 1:
        x *= scale
    if parent is not None:
        yield comm.Isend(x, parent, tag)
    yield from broadcast(comm, x, tag)


def broadcast(comm: Communicator, x, tag: int = tags.ARRAYS, root: int = 0):
    """Schedule that copies the array x of rank ``root`` to all ranks along a binomial tree."""
    n = comm.size
    parent, children = binomial_tree((comm.rank - root) % n, n)
    if parent is not None:
        yield comm.Irecv(x, (parent + root) % n, tag)
    for child in children:  # one child at a time, as a shared link would delay the largest subtree
        yield comm.Isend(x, (child + root) % n, tag)


@in_range
def mpi_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Schedule that sums x by the MPI library's own all-reduce. The MPI library chooses the algorithm."""
    if comm.size > 1:
        yield comm.Iallreduce(x)
        if scale != 1:
            x *= scale


@in_range
def hierarchical_allreduce(comm: Communicator, x, tag: int = tags.ARRAYS, scale: float = 1.0):
    """Schedule that sums x within each host through shared memory, and between hosts round rings. An owner is a rank
    that sums one part of x within its host. For each part of x, one ring joins the owners of the part on all hosts.

    The arrays of a host are added in the order of the ranks, and the sums of the hosts in the order of the ring.
    """
    yield from allreduce_by_hosts(comm, x, tag, scale, across_hosts)


def across_hosts(comm: Communicator, x, tag: int, scale: float):
    """Schedule that sets x, a part of an array, to ``scale`` times the sum of x over the ranks of ``comm``, one rank
    per host."""
    allreduce = halving_doubling_allreduce if x.nbytes <= SHORT_BYTES else ring_allreduce
    yield from allreduce(comm, x, tag, scale)


def get_ready(comm: Communicator, variant: str, x):
    """Load the compiled code that ``variant`` needs for arrays of the dtype of ``x``, so that later time measurements
    do not include the loading."""
    if variant in THROUGH_MEMORY and comm.size > 1 and comm.backend.shares_memory:
        load_loops(x.dtype)


def in_place(comm: Communicator, flat: Flat, variant: str):
    """Schedule, run on all ranks at once, that returns a copy of ``flat`` in the memory in which ``variant`` needs the
    fewest copies. If no copy is needed, the schedule returns ``flat`` itself."""
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
"""All variants of the all-reduce by name. A variant is a schedule ``variant(comm, x, tag, scale)``, where x is a
contiguous one-dimensional array.

On one rank, a variant does not change x, and does not multiply x by ``scale``.
"""
Variant = Literal["ring", "halving-doubling", "tree", "swing", "bine", "mpi", "shared", "hierarchical", "auto"]
"""Allowed values of an option that chooses a variant of the all-reduce. The value ``auto`` lets a trial choose the
fastest variant (`grsgd.algorithms.allreduce_trial`)."""
VARIANT_MEANING = (
    "which all-reduce; shared: for ranks on one host; hierarchical: within hosts, then among hosts; auto: the fastest "
    "in a trial at the start"
)
"""Description of an option that chooses a variant of the all-reduce."""
OUTLIVES_DEATHS = frozenset({"ring", "halving-doubling", "tree", "swing", "bine"})
"""Variants that can be interrupted when a process has died. These variants use only messages, and neither shared memory
nor a collective call of the MPI library."""
NAMED_BY_LIBRARY = frozenset({"mpi"})
"""Variants whose algorithm is chosen by the MPI library."""
ON_ONE_HOST = frozenset({"shared"})
"""Variants that work only if all ranks are on one host."""
THROUGH_MEMORY = frozenset({"shared", "hierarchical"})
"""Variants in which the ranks of one host share memory."""


def binomial_tree(rank: int, n: int) -> tuple[int | None, list[int]]:
    """Return the parent and the children of ``rank`` in a binomial tree of ``n`` ranks. The parent of rank 0, the root,
    is None. The first child in the list has the largest subtree."""
    lowest_bit = rank & -rank if rank else 1 << (n - 1).bit_length()
    children = []
    bit = lowest_bit >> 1
    while bit:
        if rank + bit < n:
            children.append(rank + bit)
        bit >>= 1
    return (rank - lowest_bit if rank else None), children
