"""The emulated network of a testbed: a network namespace per host, a bridge, and the rate limiter ``tc tbf`` at
both ends of every link.

All network interfaces belong to network namespaces of the testbed. The bridge belongs to the namespace of the head (the
launcher's host). The network is therefore invisible from outside the testbed, and several testbeds can use the same
addresses.
"""

import ctypes
import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

NETWORK = "10.77.0"
HEAD_ADDRESS, MEDIUM_ADDRESS = f"{NETWORK}.254", f"{NETWORK}.253"
MAX_HOSTS = 200
"""Largest number of hosts that a testbed can have."""
Medium = Literal["switched", "shared"]
MTU = 9000
"""Number of bytes of the largest network packet (MTU). Packets of 9000 bytes are jumbo frames, which most clusters use.

With such large packets, headers take only 1 % of a link's rate, and the emulating machine has to move fewer packets.
"""
BURST_SECONDS = 0.001
"""Size of the burst that an idle link may send without a limit, given as seconds at the link's rate. A burst has at
least two frames."""
FRAMES_AT_ONCE = 4
"""Number of frames that TCP hands to the network interface at once.

If TCP passed more frames, the short messages with which MPI prepares its next transfer would wait behind these frames,
and links would be idle. Real network cards avoid this wait with byte queue limits.
"""
QUEUE_SECONDS = 0.1
"""Length of the longest queue before a link, given as seconds at the link's rate. Packets that arrive when the queue is
full are dropped."""
SETTINGS = {
    "net.ipv4.tcp_congestion_control": "reno",  # allowed everywhere; BBR leaves part of a limited link unused
    "net.ipv4.tcp_limit_output_bytes": "65536",  # short queues, for the reason given at FRAMES_AT_ONCE
    "net.ipv4.tcp_slow_start_after_idle": "0",  # no slow start of TCP after ranks have computed
}
"""Linux kernel settings (sysctl) in the network namespace of each host."""
CLONE_NEWNET = 0x40000000
"""Flag of Linux's system call setns for the change to another network namespace."""
COMMAND_SECONDS = 30
"""Seconds after which a command such as ``ip`` is ended and counts as failed."""


class TestbedError(RuntimeError):
    """Error of a testbed that cannot be made or used on this machine. The error's message is one line."""

    __test__ = False  # pytest must not take this class for a test


def command(*arguments: object) -> str:
    """Run the program and arguments ``arguments``, and return the program's standard output. Raises TestbedError if the
    program fails."""
    arguments = [str(word) for word in arguments]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(f"`{' '.join(arguments)}`: no end within {COMMAND_SECONDS} s") from None
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise TestbedError(f"`{' '.join(arguments)}`: {message}")
    return done.stdout


def address(index: int) -> str:
    """Return the IPv4 address of the host with the index ``index``."""
    return f"{NETWORK}.{index + 1}"


def connect(head: str, hosts: list[str], rates: list[float], medium: Medium, mtu: int, delay: float):
    """Create the network namespaces ``head`` and ``hosts``, and connect them by links. Raises TestbedError.

    rates: rate of each host's link in bytes per second.
    medium: with ``switched``, every host has its own full-duplex link to one switch. With ``shared``, all hosts share
        one link with the rate ``rates[0]``, in both directions together, as on a bus or a radio channel. Only traffic
        from and to the head bypasses the shared link.
    delay: seconds by which all traffic leaves a host later.
    """
    make_namespace(head)
    command("ip", "-n", head, "link", "add", "bridge", "mtu", mtu, "type", "bridge", "mcast_snooping", 0)
    command("ip", "-n", head, "link", "set", "bridge", "up")
    command("ip", "-n", head, "address", "add", f"{HEAD_ADDRESS}/24", "dev", "bridge")
    for index, host in enumerate(hosts):
        make_namespace(host)
        plug_in(head, f"port{index}", host, mtu)
        command("ip", "-n", host, "link", "set", "eth0", "gso_max_size", FRAMES_AT_ONCE * mtu)
        limit(host, "eth0", rates[index], mtu, delay)
        if medium == "switched":
            command("ip", "-n", host, "address", "add", f"{address(index)}/24", "dev", "eth0")
            limit(head, f"port{index}", rates[index], mtu)
        else:  # a host reaches the head directly, and all other hosts over the shared medium
            command("ip", "-n", host, "address", "add", f"{address(index)}/32", "dev", "eth0")
            command("ip", "-n", host, "route", "add", HEAD_ADDRESS, "dev", "eth0")
            command("ip", "-n", host, "route", "add", MEDIUM_ADDRESS, "dev", "eth0")
            command("ip", "-n", host, "route", "add", "default", "via", MEDIUM_ADDRESS)
    if medium == "shared":
        # The shared medium is a router with one limited link, which all traffic between hosts passes.
        router = f"{head}-medium"
        make_namespace(router)
        plug_in(head, "medium", router, mtu)
        command("ip", "-n", router, "address", "add", f"{MEDIUM_ADDRESS}/24", "dev", "eth0")
        for key, value in {"ip_forward": 1, "conf.all.send_redirects": 0, "conf.eth0.send_redirects": 0}.items():
            command("ip", "netns", "exec", router, "sysctl", "-q", "-w", f"net.ipv4.{key}={value}")
        limit(head, "medium", rates[0], mtu)
        pass_multicast(head, [f"port{index}" for index in range(len(hosts))], router)


def pass_multicast(head: str, ports: list[str], router: str):
    """Let a host's multicast packets pass the shared medium once, and reach all hosts from this medium.

    Without this function, the bridge would send multicast packets to all ports at once, without the shared medium. The
    hosts' ports are therefore isolated: a host can reach only the shared medium and the head. The router that stands
    for the shared medium sends multicast packets back unchanged. A returned multicast packet still has the address of
    the host that sent it. The bridge must therefore not learn the ports of hosts from packets that the medium sends.
    """
    for port in ports:
        command("ip", "-n", head, "link", "set", port, "type", "bridge_slave", "isolated", "on")
    command("ip", "-n", head, "link", "set", "medium", "type", "bridge_slave", "learning", "off")
    (link,) = json.loads(command("ip", "-n", router, "-j", "link", "show", "eth0"))
    command("bridge", "-n", head, "fdb", "replace", link["address"], "dev", "medium", "master", "static")
    command("tc", "-n", router, "qdisc", "add", "dev", "eth0", "ingress")
    back = ("action", "mirred", "egress", "redirect", "dev", "eth0")
    match = ("protocol", "ip", "u32", "match", "ip", "dst", "224.0.0.0/4")
    command("tc", "-n", router, "filter", "add", "dev", "eth0", "parent", "ffff:", *match, *back)


def plug_in(head: str, port: str, namespace: str, mtu: int):
    """Create the interface eth0 in the namespace ``namespace``, and connect it to a new port ``port`` of the bridge."""
    veth = ("type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns", namespace)
    command("ip", "-n", head, "link", "add", port, "mtu", mtu, *veth)
    command("ip", "-n", head, "link", "set", port, "master", "bridge", "up")
    command("ip", "-n", namespace, "link", "set", "eth0", "up")


@contextmanager
def cut(head: str, port: str):
    """Return a context in which the port ``port`` of the bridge carries no frames."""
    command("ip", "-n", head, "link", "set", port, "down")
    try:
        yield
    finally:
        command("ip", "-n", head, "link", "set", port, "up")


def make_namespace(name: str):
    """Create a network namespace ``name`` with a loopback interface and the kernel settings `SETTINGS`."""
    command("ip", "netns", "add", name)
    command("ip", "-n", name, "link", "set", "lo", "up")
    settings = SETTINGS | ({"net.ipv6.conf.all.disable_ipv6": "1"} if Path("/proc/sys/net/ipv6").exists() else {})
    for key, value in settings.items():
        command("ip", "netns", "exec", name, "sysctl", "-q", "-w", f"{key}={value}")


@contextmanager
def inside(name: str):
    """Return a context in which this thread opens its sockets in the network namespace ``name``. Raises
    TestbedError."""
    setns = ctypes.CDLL(None, use_errno=True).setns
    with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{name}") as namespace:
        if setns(namespace.fileno(), CLONE_NEWNET):
            raise TestbedError(f"{name}: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            setns(before.fileno(), CLONE_NEWNET)


def limit(namespace: str, interface: str, rate: float, mtu: int, delay: float = 0.0):
    """Limit the traffic that leaves through ``interface`` to ``rate`` bytes per second, and delay this traffic by
    ``delay`` seconds."""
    burst = max(rate * BURST_SECONDS, 2 * (mtu + 14))
    queue = max(rate * QUEUE_SECONDS, 32 * (mtu + 14))
    tbf = ("tbf", "rate", f"{rate * 8:.0f}bit", "burst", f"{burst:.0f}b", "limit", f"{queue:.0f}b")
    add = ("tc", "-n", namespace, "qdisc", "add", "dev", interface)
    if delay:
        command(*add, "root", "handle", "1:", "netem", "delay", f"{delay * 1e6:.0f}us", "limit", 1_000_000)
    command(*add, *(("parent", "1:1") if delay else ("root",)), *tbf)


def counters(host: str) -> tuple[int, int]:
    """Return two numbers: the bytes that the network interface of ``host`` has sent, and the bytes that it has
    received."""
    (interface,) = json.loads(command("ip", "-n", host, "-s", "-j", "link", "show", "eth0"))
    counts = interface["stats64"]
    return counts["tx"]["bytes"], counts["rx"]["bytes"]


def processes(namespace: str) -> list[int]:
    """Return the ids of the processes in the network namespace ``namespace``; an empty list if the namespace cannot be
    read."""
    try:
        return [int(pid) for pid in command("ip", "netns", "pids", namespace).split()]
    except TestbedError:
        return []
