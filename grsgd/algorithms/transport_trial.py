"""Trial before a run with ``transport = "ip-multicast"`` or ``"auto"``, which finds out whether IP multicast reaches
all ranks.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import time

from grsgd.comm.coded.multicast_link import Settings, connect, try_out
from grsgd.comm.coded.sockets import NoMulticast
from grsgd.comm.communicator import Communicator
from grsgd.units import as_rate

IP_MULTICAST, MULTICAST, AUTO = "ip-multicast", "multicast", "auto"
UNUSED = {"rate": None, "interface": None, "mtu": None, "loss": None, "burst": None}
"""Options that only IP multicast uses, each with the value that it must have for other transports."""
BY_MPI = {"transport": MULTICAST} | UNUSED
"""Values of options with which packets are sent by MPI's broadcasts."""


def choose_transport(comm: Communicator, wanted: str, settings: Settings, on_gpu: bool):
    """Generator, called on all ranks at once, that returns the new values of the options that it changes, by name, and
    the reason for the choice of the transport.

    ``wanted`` is the value of the option: ip-multicast, or auto, which chooses MPI's broadcasts if IP multicast does
    not reach all ranks. ``on_gpu`` is True if the arrays to send lie in GPU memory. Raises NoMulticast, on all ranks,
    if ``wanted`` is ip-multicast and IP multicast does not reach all ranks.
    """
    try:
        if comm.backend.has_multicast is None:
            rate = yield from measured(comm, settings, on_gpu)
            return {"transport": IP_MULTICAST, "rate": as_rate(rate)}, (
                f"transport = {IP_MULTICAST}: all {comm.size} ranks hear each other; "
                f"{as_rate(rate)} {'given' if settings.rate else 'measured'}"
            )
        check_known(comm.backend.has_multicast, settings)
    except NoMulticast as error:
        if wanted != AUTO:
            raise
        return BY_MPI, f"transport = {MULTICAST}: by MPI, for {error.why}"
    return {"transport": IP_MULTICAST} | UNUSED, f"transport = {IP_MULTICAST}: the network has it"


def measured(comm: Communicator, settings: Settings, on_gpu: bool):
    """Generator, called on all ranks at once, that returns the rate of IP multicast in bytes per second: the value of
    the option ``rate``, or the measured rate. Raises NoMulticast if IP multicast does not reach all ranks."""
    if comm.size == 1:
        raise NoMulticast("one rank sends nothing")
    if on_gpu:
        raise NoMulticast("the arrays to send lie in the memory of GPUs")
    link = yield from connect(comm, settings)
    try:
        found = yield from try_out(comm, link, time.perf_counter)
    finally:
        link.sockets.close()
    return settings.rate or found


def check_known(has_multicast: bool, settings: Settings):
    """Raise NoMulticast if the simulated network has no multicast, or if ``settings`` has values for options that only
    real networks use. A simulated network needs no trial of IP multicast, because its description says whether it has
    multicast."""
    if not has_multicast:
        raise NoMulticast("the network has no multicast (multicast = true in its file, or a shared medium)")
    if settings != Settings(seed=settings.seed):
        raise NoMulticast("rate, interface, mtu, loss and burst are for a real network; leave them out")
