"""The class `Testbed`, a context manager that creates an emulated cluster of several hosts on one machine and removes
the cluster at the end."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from grsgd import mpi_environment
from grsgd.comm.driver import available_cores
from grsgd.errors import ConfigError
from grsgd.files import exclusive_lock
from grsgd.job.ending import ENDING, exit_on_signals
from grsgd.job.hearing import Hearing
from grsgd.testbed import links, quota
from grsgd.testbed.links import TestbedError
from grsgd.units import as_duration, as_rate, duration
from grsgd.units import rate as bytes_per_second

STATE = Path("/run/grsgd-testbed")
"""Folder with one folder per testbed. The process that owns a testbed keeps a file in the testbed's folder locked."""
NAMESPACES = Path("/run/netns")
ENTER = Path(__file__).with_name("enter.sh")
TOOLS = ("ip", "tc", "bridge", "nsenter", "unshare", "sysctl", "hostname")
EAGER = ("btl_tcp_eager_limit", "btl_tcp_rndv_eager_limit", "btl_tcp_max_send_size")
EAGER_BYTES = 4 * 1024 * 1024
"""Largest size in bytes of a message that Open MPI sends before the receiver has answered an announcement.

By default Open MPI announces a message of 64 KiB or more, and waits for the receiver's answer. If data are sent in both
directions, this answer waits behind data in the TCP connection, and a slow link is idle half of the time.
"""


class Testbed:
    """Emulated cluster on one machine. Each host has a network namespace, a host name and a share of processor time.

    Use a `Testbed` as a context manager. SIGTERM and SIGHUP end the context, too, unless the program handles these
    signals. The hosts' names begin with the testbed's name: ``tb0-0``, ``tb0-1``, ... Launchers run on an additional
    host, the head, which has no quota of processor time and no limited link.

    Parameters
    ----------
    hosts
        Number of hosts.
    rate
        Rate of each link, in the units of ``tc``, such as ``"100mbit"``.
    cpu
        Number of cores of each host, possibly a fraction. None means no limit.
    slow
        Factor for each slow host. The host's number of cores is ``cpu`` or, without ``cpu``, a fair share, divided by
        this factor.
    slow_links
        Rate of each link that has another rate than ``rate``, by host; none on a shared medium.
    medium
        ``"switched"`` or ``"shared"``, see `links.connect`.
    mtu
        Number of bytes of the largest packet.
    delay
        Delay of all traffic that leaves a host, such as ``"2ms"``. A delay needs a kernel with ``netem``.

    Raises
    ------
    TestbedError
        If this machine cannot have such a testbed.
    """

    __test__ = False

    def __init__(
        self,
        hosts: int = 4,
        rate: str = "100mbit",
        cpu: float | None = None,
        slow: Mapping[int, float] | None = None,
        medium: links.Medium = "switched",
        mtu: int = links.MTU,
        delay: str = "0s",
        slow_links: Mapping[int, str] | None = None,
    ):
        slow, slow_links = slow or {}, slow_links or {}
        self.count, self.medium, self.mtu = hosts, medium, mtu
        if not 1 <= hosts <= links.MAX_HOSTS:
            raise TestbedError(f"hosts = {hosts}; allowed: 1 to {links.MAX_HOSTS}")
        try:
            self.rate, self.delay = bytes_per_second(rate), duration(delay)
            self.rates = [bytes_per_second(slow_links.get(host, rate)) for host in range(hosts)]
        except ValueError as error:
            raise TestbedError(str(error)) from None
        if wrong := [host for host in slow if not 0 <= host < hosts]:
            raise TestbedError(f"slow host {wrong[0]}; allowed: 0 to {hosts - 1}")
        if wrong := [host for host in slow_links if not 0 <= host < hosts or medium == "shared"]:
            allowed = "no slow links on a shared medium" if medium == "shared" else f"hosts 0 to {hosts - 1}"
            raise TestbedError(f"slow link of host {wrong[0]}; allowed: {allowed}")
        if wrong := [factor for factor in slow.values() if not factor >= 1]:
            raise TestbedError(f"slow by {wrong[0]}; allowed: 1 or more")
        cores = available_cores()
        if slow and cpu is None:
            cpu = fair_share(hosts)
        self.cpu = {host: cpu / slow.get(host, 1.0) for host in range(hosts)} if cpu is not None else {}
        if wrong := [share for share in self.cpu.values() if not 0.05 <= share <= cores]:
            raise TestbedError(f"a host of {wrong[0]:g} cores; allowed: 0.05 to {cores}, the cores of this machine")

    def __enter__(self):
        check_machine()
        with only_one():
            remove_stale()
            self.name = free_name()
            self.folder = STATE / self.name
            self.folder.mkdir()
            self._lock = exclusive_lock(self.folder / "lock")  # __exit__ closes this file, and closing removes the lock
        self._keeper = keeper()
        self._handlers = exit_on_signals()
        self.hosts = [f"{self.name}-{index}" for index in range(self.count)]
        self.head = f"{self.name}-head"
        try:
            self._write_hosts_file()
            links.connect(self.head, self.hosts, self.rates, self.medium, self.mtu, self.delay)
            for index, cores in self.cpu.items():
                host = self.hosts[index]
                (self.folder / f"{host}.procs").symlink_to(quota.create(group_of(host), cores))
            links.command(*self.enter(self.hosts[0], ["true"]))  # fails in containers that forbid to enter a host
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise TestbedError(f"the testbed cannot be made: {error}") from None
            raise
        return self

    def __str__(self):
        late = f", {as_duration(self.delay)} late" if self.delay else ""
        slow = "".join(
            f", {as_rate(rate)}/s for host {host}" for host, rate in enumerate(self.rates) if rate != self.rate
        )
        return f"{self.name}: {self.count} hosts, {self.medium}, {as_rate(self.rate)}/s{slow}{late}"

    def __exit__(self, *exception):
        try:
            with uninterrupted(), only_one():
                remove(self.name)
        finally:
            self._lock.close()
            self._keeper.kill()
            self._keeper.communicate()
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def without_cpu_limit(self):
        """Return a context in which hosts may use all cores of the machine, so that programs start many times
        faster."""
        for index in self.cpu:
            quota.limit(group_of(self.hosts[index]), None)
        try:
            yield
        finally:
            for index, cores in self.cpu.items():
                quota.limit(group_of(self.hosts[index]), cores)

    def _write_hosts_file(self):
        """Write the file that each host sees as /etc/hosts, with the names and addresses of all hosts."""
        lines = [f"{self.address(host)} {host}" for host in [*self.hosts, self.head]]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")

    def address(self, host: str) -> str:
        """Return the IPv4 address of the host with the name ``host``, which may be the head."""
        return links.HEAD_ADDRESS if host == self.head else links.address(self.hosts.index(host))

    def enter(self, host: str, command: list) -> list[str]:
        """Return a command line that runs ``command`` on ``host``. The starting shell is replaced by ``command``, so
        that signals reach ``command``."""
        return [str(ENTER), host, "exec " + shlex.join(str(argument) for argument in command)]

    def mpiexec(self, arguments: list) -> list[str]:
        """Return a command line that runs ``mpiexec`` with ``arguments`` on the hosts of the testbed. By default rank 0
        runs on the first host, rank 1 on the second host, and so on; after the last host comes the first.

        Raises TestbedError if mpiexec is not from Open MPI 5 or newer.
        """
        options = [
            *("--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", ENTER, "--prtemca", "plm_ssh_no_tree_spawn", 1),
            *("--prtemca", "prte_tmpdir_base", self.folder),  # killed daemons of Open MPI leave files in this folder
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,self"),  # ranks use only the network, and not shared memory
            *(argument for key in EAGER for argument in ("--mca", key, EAGER_BYTES)),
            *("--host", ",".join(self.hosts), "--map-by", "node:OVERSUBSCRIBE", "--bind-to", "none"),
        ]
        return self.enter(self.head, [find_mpiexec(), *options, *arguments])

    def settings(self) -> dict[str, str]:
        """Return environment variables for the command `grsgd run --hosts` on the testbed's head. With these variables,
        Open MPI starts ranks on the testbed's hosts, and ranks send messages only over the network."""
        launcher = {"plm": "ssh", "plm_ssh_agent": ENTER, "plm_ssh_no_tree_spawn": 1, "prte_tmpdir_base": self.folder}
        library = {"pml": "ob1", "btl": "tcp,self"} | dict.fromkeys(EAGER, EAGER_BYTES)
        found = {f"PRTE_MCA_{key}": value for key, value in launcher.items()}
        found |= {f"OMPI_MCA_{key}": value for key, value in library.items()}
        return {key: str(value) for key, value in found.items()}

    def kill(self, index: int):
        """Kill all processes on the host with the index ``index``."""
        send(signal.SIGKILL, links.processes(self.hosts[index]))

    @contextmanager
    def lost(self, index: int):
        """Return a context in which host number ``index`` is dead, as after a power failure: it sends and runs nothing.

        The host's link carries no packets, and its processes are stopped, so that no connection is closed. At the end
        of the context, the stopped processes are killed, and the link carries packets again. Raises TestbedError.
        """
        host = self.hosts[index]
        with self.cut(index):
            stopped: set[int] = set()
            try:
                while new := set(links.processes(host)) - stopped:  # a stopped process may have started others
                    send(signal.SIGSTOP, new)
                    stopped |= new
                yield
            finally:
                send(signal.SIGKILL, stopped & set(links.processes(host)))

    def hearing(self) -> Hearing:
        """Return a `Hearing`, an object that finds out during one job whether the hosts are still alive. The `Hearing`
        receives signs of life from the hosts on the testbed's head."""
        with links.inside(self.head):
            return Hearing([self.address(host) for host in self.hosts])

    def wait(self, seconds: float):
        """Wait until no process is left on the hosts, but at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while any(map(links.processes, self.hosts)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def cut(self, index: int):
        """Return a context in which the link of the host with the index ``index`` carries no packets. Raises
        TestbedError."""
        return links.cut(self.head, f"port{index}")

    def counters(self) -> np.ndarray:
        """Return the number of bytes that each host's network interface has sent, and the number that it has received:
        int64 of shape [hosts, 2]."""
        return np.array([links.counters(host) for host in self.hosts], np.int64)


def send(number: int, processes: Iterable[int]):
    """Send the signal with the number ``number`` to each of ``processes`` (process ids) that still exists."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def group_of(host: str) -> str:
    """Return the name of the Linux control group that limits the processor time of ``host``."""
    return f"grsgd-{host}"


def check_machine():
    """Raise TestbedError, with advice for the user, if this machine cannot have a testbed."""
    if not sys.platform.startswith("linux"):
        raise TestbedError("a testbed needs Linux: network namespaces and control groups")
    if os.geteuid() != 0:
        raise TestbedError("a testbed needs root, for network namespaces and control groups: try sudo")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise TestbedError(f"a testbed needs `{tool}`; Debian: apt-get install iproute2 util-linux procps hostname")


def find_mpiexec() -> str:
    """Return the path of the ``mpiexec`` in the folder of this Python or, if that folder has none, on PATH.

    Raises TestbedError unless this ``mpiexec`` is from Open MPI 5 or newer.
    """
    try:
        mpiexec = mpi_environment.find_mpiexec()
    except ConfigError as error:
        raise TestbedError(str(error)) from None
    version = links.command(mpiexec, "--version").splitlines()[0]
    found = re.search(r"Open MPI\) (\d+)", version)
    if found is None or int(found[1]) < 5:
        raise TestbedError(f"{mpiexec} is {version!r}; a testbed needs the launch agent of Open MPI 5 or newer")
    return mpiexec


def fair_share(hosts: int) -> float:
    """Return the largest number of cores per host, at most 1, with which the hosts together do not need more cores than
    this machine has."""
    return min(available_cores() / hosts, 1.0)


def free_name() -> str:
    """Return a name for a new testbed: the first of ``tb0``, ``tb1``, ... that is in use neither for a testbed nor for
    a network namespace."""
    names = (f"tb{number}" for number in itertools.count())
    return next(name for name in names if not (STATE / name).exists() and not any(NAMESPACES.glob(f"{name}-*")))


def testbeds() -> list[str]:
    """Return the names of all testbeds of this machine, including testbeds whose process was killed."""
    return sorted(folder.name for folder in STATE.iterdir() if folder.is_dir())


def left_behind(name: str) -> bool:
    """Return True if the process that has created the testbed ``name`` has ended without removing the testbed."""
    try:
        exclusive_lock(STATE / name / "lock", timeout=0).close()
    except TimeoutError:
        return False
    return True


def clear() -> list[str]:
    """Remove all testbeds whose process was killed, and return the names of these testbeds. Raises TestbedError."""
    check_machine()
    with only_one():
        return remove_stale()


def remove_stale() -> list[str]:
    """Remove all testbeds whose process was killed, and return the names of these testbeds. The caller must have
    entered the context `only_one`."""
    stale = [name for name in testbeds() if left_behind(name)]
    for name in stale:
        remove(name)
    return stale


def keeper() -> subprocess.Popen:
    """Start a process (the keeper) that removes this process's testbed as soon as this process has ended, even by
    SIGKILL.

    The keeper reads its standard input, which ends when this process ends.
    """
    command = ["sh", "-c", 'cat && exec "$@"', "sh", sys.executable, "-m", "grsgd.testbed", "--clear"]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals to the process group of this process must not reach the keeper
    )


def remove(name: str, seconds: float = 10.0):
    """Remove testbed ``name`` with its processes, namespaces, network interfaces, control groups and files.

    Raises TestbedError if the processes do not end within ``seconds``, or if a namespace, group or file cannot be
    removed.
    """
    namespaces = [path.name for path in NAMESPACES.glob(f"{name}-*")]
    deadline = time.monotonic() + seconds
    while running := [pid for namespace in namespaces for pid in links.processes(namespace)]:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TestbedError(f"processes of testbed {name} do not end: {running}")
        time.sleep(0.02)
    for namespace in namespaces:
        links.command("ip", "netns", "delete", namespace)
    try:
        quota.remove(group_of(f"{name}-"))
        shutil.rmtree(STATE / name)
    except OSError as error:
        raise TestbedError(f"testbed {name} cannot be removed: {error}") from None


@contextmanager
def only_one(seconds: float = 120.0):
    """Return a context in which this process may create and remove testbeds. Only one process at a time can be in the
    context.

    Raises TestbedError if another process stays in the context for ``seconds``.
    """
    STATE.mkdir(exist_ok=True)
    try:
        file = exclusive_lock(STATE / "lock", seconds)
    except TimeoutError:
        raise TestbedError(f"another process has held {STATE}/lock for {seconds:g} s") from None
    with file:
        yield


@contextmanager
def uninterrupted():
    """Return a context that delays the effect of Ctrl-C, SIGTERM and SIGHUP until the end of the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *ENDING))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
