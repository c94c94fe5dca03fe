"""Detection of lost hosts, for `grsgd run` and `grsgd testbed`, by datagrams from each rank's heart process."""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grsgd.job.heart import BYE, CUT, FROM_STDIN, PAUSE, SEEN, TOLD
from grsgd.mpi_environment import HEARTS, rank
from grsgd.text import hosts_in_words, ranks_in_words

HEART = Path(__file__).with_name("heart.py")
SILENT_SECONDS = 4.0
"""Seconds without any datagram from a host after which the host counts as lost."""
FENCE_SECONDS = 4.5
"""Seconds without an answer from ``grsgd run`` after which a heart process kills its rank. So no rank lives for long
after its host was declared lost.

`FENCE_SECONDS` is longer than `SILENT_SECONDS`. With a shorter `FENCE_SECONDS`, a link that fails for slightly less
than `SILENT_SECONDS` would cost a host its ranks, although the host does not count as lost."""
STOPPED_SECONDS = 1.0
"""If more seconds than this number lie between two calls of `Hearing.look`, this process itself was stopped and could
receive no datagrams."""
LAST_WORDS_SECONDS = 1.0
"""Seconds that the heart processes have to send their last datagrams after the launcher has ended."""
LOOK_SECONDS = 0.1
"""Seconds between two calls of `Hearing.look`, which receives datagrams."""


class Hearing:
    """Receiver of the datagrams that the heart processes of one job send.

    Parameters
    ----------
    hosts
        Names of the job's hosts, if they are known; the argument of `own_addresses`.
    fences
        Whether a heart process that receives no answers kills its rank.
    clock
        Function that returns seconds.
    absent
        See the attribute `absent`.
    """

    def __init__(
        self,
        hosts: Collection[str] = (),
        fences: bool = False,
        clock: Callable[[], float] = time.monotonic,
        absent: Callable[[Collection[str]], list[str]] = lambda heard: [],
    ):
        self.clock, self.fences = clock, fences
        self.absent = absent
        """Function that returns the names of newly lost hosts from which no datagram has arrived, such as
        `Absence.look`. The argument of the function `absent` is the collection of hosts from which datagrams have
        arrived. `Hearing.look` calls the function `absent` each time."""
        self.key = secrets.token_hex(8)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("", 0))
        self.socket.setblocking(False)
        self.names = own_addresses(hosts)
        self.hosts: dict[str, dict[int, bool]] = {}
        """Dictionary from each host from which datagrams have arrived to the ranks on this host. The value of a rank is
        True if the rank's heart process has sent a last datagram (`TOLD` or `BYE`)."""
        self.heard: dict[str, float] = {}
        """Time of the last datagram from each host, in seconds of ``clock``."""
        self.lost: list[str] = []
        """Names of the lost hosts, in the order in which their loss was noticed."""
        self.lost_at: float | None = None
        """Time at which the loss of a host was first noticed, in seconds since 1970; None before the first loss."""
        self.cut: set[str] = set()
        """Names of lost hosts at which no answers of this process arrive, so that a heart process of the host has
        killed its rank."""
        self.asked = 0
        """Number of the signal that has asked for the end of the job while its launcher ran; 0 without a signal."""
        self._places: set[tuple[str, int]] = set()
        self._looked = clock()

    @property
    def arguments(self) -> list[str]:
        """First two arguments of a heart process: the key of the job, and the addresses to which the process sends."""
        port = self.socket.getsockname()[1]
        return [self.key, ",".join(f"{name}:{port}" for name in self.names)]

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which the ranks of the job start their heart processes."""
        return {HEARTS: " ".join([*self.arguments, str(FENCE_SECONDS if self.fences else 0.0)])}

    def look(self) -> list[str]:
        """Receive and answer the datagrams that have arrived. Return the names of hosts whose loss was noticed in this
        call. `look` is called again and again while the launcher of the job runs."""
        lost = self._hear()
        absent = [host for host in self.absent(self.hosts) if host not in self.lost]
        self._lose(absent)
        return lost + absent

    def _hear(self) -> list[str]:
        """Receive and answer the datagrams that have arrived. Return the names of hosts that have newly become silent
        (no datagrams for `SILENT_SECONDS`), or that are new in `cut`."""
        now = self.clock()
        if now - self._looked > STOPPED_SECONDS:
            self.heard = dict.fromkeys(self.heard, now)
        self._looked = now
        for number, word, host, place in self._come():
            self._places.add(place)
            self._send(SEEN, place)
            self.heard[host] = now
            ranks = self.hosts.setdefault(host, {})
            ranks[number] = ranks.get(number, False) or word in (TOLD, BYE)
            if word == CUT:
                self.cut.add(host)
        lost = [
            host
            for host, ranks in self.hosts.items()
            if host not in self.lost
            and (host in self.cut or (not all(ranks.values()) and now - self.heard[host] > SILENT_SECONDS))
        ]
        self._lose(lost)
        return lost

    def _lose(self, hosts: list[str]):
        if hosts and self.lost_at is None:
            self.lost_at = time.time()
        self.lost += hosts

    def _come(self) -> Iterator[tuple[int, str, str, tuple[str, int]]]:
        """Yield (rank, word such as "beats", host name, sender's address) of each datagram of this job that has
        arrived."""
        while True:
            try:
                content, place = self.socket.recvfrom(400)
            except OSError:
                return
            key, *rest = content.decode(errors="replace").split()[:4] or [""]
            if key == self.key and len(rest) == 3 and rest[0].isdecimal():
                yield int(rest[0]), rest[1], rest[2], place

    def _send(self, word: str, place: tuple[str, int]):
        try:
            self.socket.sendto(f"{self.key} {word}".encode(), place)
        except OSError:  # sending failed, because the link is down or its queue is full
            pass

    def pause(self):
        """Tell the heart processes that this process is about to be stopped, and will send no answers."""
        for place in self._places:
            self._send(PAUSE, place)

    def conclude(self) -> list[str]:
        """Return the names of all lost hosts; to be called after the launcher of the job has ended. If any host has
        sent a last datagram (`TOLD` or `BYE`), each host that has sent none is also lost."""
        deadline = self.clock() + LAST_WORDS_SECONDS
        self._hear()
        while self._unsaid() and self.clock() < deadline:
            time.sleep(LOOK_SECONDS)
            self._hear()
        if any(self._said(host) for host in self.hosts):
            self._lose(self._unsaid())
        return self.lost

    def _unsaid(self) -> list[str]:
        """Return the names of the hosts that are not lost, but whose heart processes have sent no last datagram."""
        return [host for host in self.hosts if host not in self.lost and not self._said(host)]

    def _said(self, host: str) -> bool:
        return any(self.hosts[host].values())

    def has_said(self, hosts: int) -> bool:
        """Return whether a last datagram has come from the heart processes of at least ``hosts`` hosts."""
        return sum(map(self._said, self.hosts)) >= hosts

    def why(self, hosts: Collection[str]) -> str:
        """Return a text with the reason why ``hosts`` count as lost."""
        if not any(host in self.hosts for host in hosts):
            return f"no sign of life of {self.in_words(hosts)} since the launch"
        if self.cut.issuperset(hosts):
            return f"no answers arrive at {self.in_words(hosts)}"
        return f"no sign of life of {self.in_words(hosts)} for {SILENT_SECONDS:g} s"

    def in_words(self, hosts: Collection[str]) -> str:
        """Return ``hosts`` as text for a sentence, with the ranks of each host from which datagrams have arrived."""
        ranks = {host: f" ({ranks_in_words(sorted(found))})" for host, found in self.hosts.items()}
        return hosts_in_words([host + ranks.get(host, "") for host in hosts])


def own_addresses(hosts: Collection[str]) -> list[str]:
    """Return the addresses of this machine from which ``hosts`` are reached. Return this machine's name if ``hosts`` is
    empty or no host is reached."""
    found = []
    for host in hosts:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            try:
                way.connect((host, 9))
            except OSError:
                continue
            found.append(way.getsockname()[0])
    return list(dict.fromkeys(found)) or [socket.gethostname()]


@contextmanager
def heard_by(hearing: Hearing | None):
    """Run the block with the environment variables by which the heart processes of a job send datagrams to
    ``hearing``."""
    if hearing is None:
        yield
        return
    os.environ |= hearing.variables()
    try:
        yield
    finally:
        os.environ.pop(HEARTS)


_hearts: list[subprocess.Popen] = []
"""Heart processes that this process has started. The processes' objects are kept because Python prints a warning when
the object of a running child process is deleted."""


def start_heart():
    """Start the heart process of this rank, if `grsgd run` or `grsgd testbed` watches over the hosts of this job."""
    if os.environ.get(HEARTS) and not _hearts:
        key, places, fence = os.environ[HEARTS].split()
        command = [sys.executable, "-I", "-S", HEART, FROM_STDIN, places, rank() or "0", fence, str(os.getpid())]
        quiet = subprocess.DEVNULL
        heart = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        with suppress(OSError), heart.stdin:  # writing fails if the heart process has ended already
            heart.stdin.write(f"{key}\n".encode())
        _hearts.append(heart)
