"""Every driver and every backend, real, simulated or a double of the tests, has what its protocol lists, and no other
way to call it."""

import inspect
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import simpy

from grsgd.comm.backend import Backend, MpiBackend, Request
from grsgd.comm.communicator import Communicator, Message
from grsgd.comm.driver import Driver, MpiDriver
from grsgd.comm.engine import ENGINE, Handle
from grsgd.comm.gpu.backend import GpuBackend
from grsgd.comm.gpu.direct import Direct
from grsgd.comm.gpu.ipc import Ipc
from grsgd.comm.gpu.memory import GpuEvent
from grsgd.comm.gpu.memory import Memory as GpuMemory
from grsgd.comm.gpu.staged import Staged
from grsgd.comm.gpu.transport import Transfer
from grsgd.comm.pollables import Compute, Delay, Pollable, Signal, Until
from grsgd.simulator.driver import Activity, SimulatedDriver, Timer
from grsgd.simulator.messages import Receiving, Sending
from grsgd.testing.simulated import Ranks
from tests.support.device_double import DeviceDouble, Event, Memory
from tests.support.threads import FAKE, Group, Mpi

SENDING = {"Isend", "Issend", "Irecv", "Ibcast", "Iallreduce"}
TRANSPORTS = {"direct": Direct, "staged": Staged, "ipc": Ipc}


def listed(protocol) -> dict:
    """Attributes of a protocol by name: its methods, and None for what is no method."""
    methods = {name: value for name, value in vars(protocol).items() if inspect.isfunction(value)}
    return dict.fromkeys(protocol.__annotations__) | {name: f for name, f in methods.items() if name[0] != "_"}


def parameters(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def check(one, names: dict):
    for name, method in names.items():
        assert hasattr(one, name), f"{type(one).__name__} has no {name}"
        if method is not None:
            assert parameters(getattr(one, name)) == parameters(method), f"{type(one).__name__}.{name}"


@pytest.fixture
def mpi(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=FAKE))
    return Mpi(Group([0]), 0)


def test_what_is_listed():
    assert set(listed(Driver)) == {
        *("clock", "poll", "start", "abandon", "wait_seconds", "progress_mode", "timeout", "watch", "abandoned"),
        "calls_stages",
    }
    others = {"Iprobe", "dup", "subset", "free", "rank", "size", "lost", "survives_deaths", "shares_memory", "hosts"}
    assert set(listed(Backend)) == SENDING | others | {"has_multicast"}


def test_drivers():
    drivers = [MpiDriver(), SimulatedDriver(simpy.Environment()), *Ranks(2).drivers]
    for driver in drivers:
        check(driver, listed(Driver))
    drivers[0].close()


@pytest.mark.parametrize("kind", [MpiBackend, GpuBackend, DeviceDouble])
def test_backends_of_mpi(kind, mpi):
    backend = kind(mpi) if kind is MpiBackend else kind(mpi, partial(Staged, memory=Memory()), 5.0)
    copies = backend.dup(), backend.subset([0])
    for one in (backend, *copies):
        check(one, listed(Backend))
        assert type(one) is kind and one.timeout == backend.timeout and (one.rank, one.size, one.lost) == (0, 1, ())
    for one in copies:
        one.free()
        assert one.mpi.freed
    assert not mpi.freed


def test_simulated_backends():
    comms = Ranks(3).comms
    for one in (comms[0].backend, comms[1].backend.dup(), comms[2].backend.subset([0, 2])):
        check(one, listed(Backend))


@pytest.mark.parametrize("name", TRANSPORTS)
def test_gpu_transports_have_the_sending_verbs(name, mpi):
    more = {"host": mpi.Get_group()} if name == "ipc" else {}
    transport = TRANSPORTS[name](MpiBackend(mpi), Memory(), **more)
    check(transport, {verb: method for verb, method in listed(Backend).items() if verb in SENDING})


def test_a_communicator_makes_its_like_of_any_backend(mpi):
    for backend in (MpiBackend(mpi), DeviceDouble(mpi, partial(Staged, memory=Memory())), Ranks(1).comms[0].backend):
        comm = Communicator(backend)
        part = comm.subset([0])
        assert type(part) is Communicator and type(part.backend) is type(backend) and part.traffic is comm.traffic


def test_the_double_of_gpu_memory():
    for name, method in vars(GpuMemory).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            assert parameters(getattr(Memory, name)) == parameters(method), name
    assert isinstance(vars(GpuEvent)["done"], property) and isinstance(vars(Event)["done"], property)


@pytest.mark.parametrize(
    "kind", [Message, Handle, Transfer, Delay, Compute, Until, Signal, Sending, Receiving, Activity, Timer]
)
def test_pollables(kind):
    assert listed(Request).keys() == listed(Pollable).keys() == {"Test"}
    one = Until(lambda: True, "all") if kind is Until else kind
    assert parameters(one.Test) == []


def test_a_background_schedule_has_its_value():
    def schedule():
        yield from ()
        return 7

    simulated = Ranks(1)
    for driver in (MpiDriver(progress_mode="inline"), simulated.drivers[0]):
        handle = driver.start(schedule())
        simulated.settle()
        assert handle.Test() and handle.value == 7
        assert handle not in ENGINE.handles
