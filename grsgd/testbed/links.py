"""The network of a testbed: namespaces, a bridge, and ``tc tbf``, a limiter, at both ends of every link.

All of it lies in namespaces of the testbed's own, the bridge in that of the head. Nothing is visible outside, testbeds
do not meet, and all have the same addresses.
"""

import json
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

NETWORK = "10.77.0"
HEAD_ADDRESS, MEDIUM_ADDRESS = f"{NETWORK}.254", f"{NETWORK}.253"
MAX_HOSTS = 200
Medium = Literal["switched", "shared"]
MTU = 9000
"""Jumbo frames, as on most clusters: headers take 1 % of the wire, and the machine that emulates has fewer packets."""
BURST_SECONDS = 0.001
"""How much a link that was idle may send at once, in seconds of its rate; at least two frames."""
FRAMES_AT_ONCE = 4
"""How many frames TCP hands to the interface in one piece: with more, the few bytes with which MPI arranges its next
transfer wait behind so much of the last one that links stand idle. On real cards byte queue limits see to that."""
QUEUE_SECONDS = 0.1
"""The length of a full queue; what comes then is dropped."""
SETTINGS = {
    "net.ipv4.tcp_congestion_control": "reno",  # allowed on every machine; BBR leaves a part of a limited link unused
    "net.ipv4.tcp_limit_output_bytes": "65536",  # see FRAMES_AT_ONCE
    "net.ipv4.tcp_slow_start_after_idle": "0",  # computing between two messages is not a reason to forget the rate
}
COMMAND_SECONDS = 30


class TestbedError(RuntimeError):
    """A testbed that there cannot be here: one line that says why."""

    __test__ = False  # for pytest


def command(*arguments: object) -> str:
    """Run a command and return its output. Raises TestbedError."""
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
    """Return the address of host ``index``."""
    return f"{NETWORK}.{index + 1}"


def connect(head: str, hosts: list[str], rates: list[float], medium: Medium, mtu: int, delay: float):
    """Make the namespaces ``head`` and ``hosts`` and join them. Raises TestbedError.

    rates: bytes per second of each host's link.
    switched: every host has a link of its own, full duplex, to one switch.
    shared: all hosts share one link, of the first rate, in both directions together, as on a bus or a radio channel;
        only what goes to and comes from the head does not pass it.
    delay: seconds that everything takes longer which leaves a host.
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
        else:  # only the head is near; the others are reached by way of the medium
            command("ip", "-n", host, "address", "add", f"{address(index)}/32", "dev", "eth0")
            command("ip", "-n", host, "route", "add", HEAD_ADDRESS, "dev", "eth0")
            command("ip", "-n", host, "route", "add", MEDIUM_ADDRESS, "dev", "eth0")
            command("ip", "-n", host, "route", "add", "default", "via", MEDIUM_ADDRESS)
    if medium == "shared":
        # A router with one link, on which everything comes and goes; on the way to it, it is limited.
        router = f"{head}-medium"
        make_namespace(router)
        plug_in(head, "medium", router, mtu)
        command("ip", "-n", router, "address", "add", f"{MEDIUM_ADDRESS}/24", "dev", "eth0")
        for key, value in {"ip_forward": 1, "conf.all.send_redirects": 0, "conf.eth0.send_redirects": 0}.items():
            command("ip", "netns", "exec", router, "sysctl", "-q", "-w", f"net.ipv4.{key}={value}")
        limit(head, "medium", rates[0], mtu)
        pass_multicast(head, [f"port{index}" for index in range(len(hosts))], router)


def pass_multicast(head: str, ports: list[str], router: str):
    """Let what a host sends to a multicast group pass the shared medium once, and from there reach all hosts.

    The bridge would bring it to all ports at once, past the medium. So ports reach nothing but the medium and the head,
    and what comes to the router for a group goes back as it is. As it then comes from the medium with the address of
    the host that has sent it, the bridge must not learn from there where hosts are.
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
    """Join the interface eth0 of a namespace, which is made, to a port of the bridge."""
    veth = ("type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns", namespace)
    command("ip", "-n", head, "link", "add", port, "mtu", mtu, *veth)
    command("ip", "-n", head, "link", "set", port, "master", "bridge", "up")
    command("ip", "-n", namespace, "link", "set", "eth0", "up")


@contextmanager
def cut(head: str, port: str):
    """Let nothing pass a port of the bridge, until the block is left."""
    command("ip", "-n", head, "link", "set", port, "down")
    try:
        yield
    finally:
        command("ip", "-n", head, "link", "set", port, "up")


def make_namespace(name: str):
    command("ip", "netns", "add", name)
    command("ip", "-n", name, "link", "set", "lo", "up")
    settings = SETTINGS | ({"net.ipv6.conf.all.disable_ipv6": "1"} if Path("/proc/sys/net/ipv6").exists() else {})
    for key, value in settings.items():
        command("ip", "netns", "exec", name, "sysctl", "-q", "-w", f"{key}={value}")


def limit(namespace: str, interface: str, rate: float, mtu: int, delay: float = 0.0):
    """Let at most ``rate`` bytes per second leave through the interface, each of them ``delay`` seconds late."""
    burst = max(rate * BURST_SECONDS, 2 * (mtu + 14))
    queue = max(rate * QUEUE_SECONDS, 32 * (mtu + 14))
    tbf = ("tbf", "rate", f"{rate * 8:.0f}bit", "burst", f"{burst:.0f}b", "limit", f"{queue:.0f}b")
    add = ("tc", "-n", namespace, "qdisc", "add", "dev", interface)
    if delay:
        command(*add, "root", "handle", "1:", "netem", "delay", f"{delay * 1e6:.0f}us", "limit", 1_000_000)
    command(*add, *(("parent", "1:1") if delay else ("root",)), *tbf)


def counters(host: str) -> tuple[int, int]:
    """Return the bytes that the host's interface has sent and received."""
    (interface,) = json.loads(command("ip", "-n", host, "-s", "-j", "link", "show", "eth0"))
    counts = interface["stats64"]
    return counts["tx"]["bytes"], counts["rx"]["bytes"]


def processes(namespace: str) -> list[int]:
    """Return the numbers of the processes in a namespace; none if it was left half-made."""
    try:
        return [int(pid) for pid in command("ip", "netns", "pids", namespace).split()]
    except TestbedError:
        return []
