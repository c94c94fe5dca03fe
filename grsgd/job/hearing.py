"""Watch over the hosts of a job: `grsgd run` and `grsgd testbed` hear the hearts of its ranks, and know which host was
lost."""

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
"""Seconds without any datagram of a host after which the host is lost."""
FENCE_SECONDS = 4.5
"""Seconds without an answer after which a heart kills its rank, so that no rank long outlives the loss of its host.

This time is longer than `SILENT_SECONDS`. Otherwise a link that comes back between the two times would have cost its
host the ranks, although the host is not lost."""
STOPPED_SECONDS = 1.0
"""Seconds between two looks after which this process itself must have been stopped, so that nothing could be heard."""
LAST_WORDS_SECONDS = 1.0
"""Seconds that the hearts have to say their last words after the launcher has ended."""
LOOK_SECONDS = 0.1
"""Seconds between two looks for datagrams."""


class Hearing:
    """Receiver of the datagrams of the hearts of one job.

    Parameters
    ----------
    hosts
        Hosts of the job, if they are known; this machine's addresses are then the addresses that lead to these hosts.
    fences
        Whether hearts that get no answers kill their ranks.
    clock
        Function that returns seconds.
    absent
        See `absent`.
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
        """Function that returns newly lost hosts of which no heart was heard, given the hosts that were heard. The
        function, such as `Absence.look`, is called at each look while the launcher runs."""
        self.key = secrets.token_hex(8)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("", 0))
        self.socket.setblocking(False)
        self.names = own_addresses(hosts)
        self.hosts: dict[str, dict[int, bool]] = {}
        """Ranks of each host that was heard, and whether the rank's heart has said a last word."""
        self.heard: dict[str, float] = {}
        """Time of the last datagram of each host."""
        self.lost: list[str] = []
        """Hosts that are lost, in the order in which their loss was noticed."""
        self.lost_at: float | None = None
        """Time at which a loss was first noticed, in seconds since 1970."""
        self.cut: set[str] = set()
        """Hosts where answers do not arrive, so that a heart there has killed its rank; such a host is lost."""
        self.asked = 0
        """Signal that has asked for the end of the job while its launcher ran; 0 without a signal."""
        self._places: set[tuple[str, int]] = set()
        self._looked = clock()

    @property
    def arguments(self) -> list[str]:
        """Key and places, the first arguments of a heart."""
        port = self.socket.getsockname()[1]
        return [self.key, ",".join(f"{name}:{port}" for name in self.names)]

    def variables(self) -> dict[str, str]:
        """Return the environment variables by which the ranks of the job start their hearts."""
        return {HEARTS: " ".join([*self.arguments, str(FENCE_SECONDS if self.fences else 0.0)])}

    def look(self) -> list[str]:
        """Receive the datagrams that have arrived, and answer them; return the hosts that are newly lost, while the
        launcher of the job runs."""
        lost = self._hear()
        absent = [host for host in self.absent(self.hosts) if host not in self.lost]
        self._lose(absent)
        return lost + absent

    def _hear(self) -> list[str]:
        """Receive the datagrams that have arrived, and answer them; return the hosts that are newly silent or cut."""
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
        """Yield rank, word, host and place of each datagram of this job that has arrived."""
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
        except OSError:  # the link is down or its queue is full
            pass

    def pause(self):
        """Tell the hearts that this process is about to be stopped, and will not answer."""
        for place in self._places:
            self._send(PAUSE, place)

    def conclude(self) -> list[str]:
        """Return all lost hosts, after the launcher of the job has ended: a host is also lost if none of its hearts has
        said a last word, although a heart of another host has."""
        deadline = self.clock() + LAST_WORDS_SECONDS
        self._hear()
        while self._unsaid() and self.clock() < deadline:
            time.sleep(LOOK_SECONDS)
            self._hear()
        if any(self._said(host) for host in self.hosts):
            self._lose(self._unsaid())
        return self.lost

    def _unsaid(self) -> list[str]:
        """Return the hosts that are not lost, and none of whose hearts has said a last word."""
        return [host for host in self.hosts if host not in self.lost and not self._said(host)]

    def _said(self, host: str) -> bool:
        return any(self.hosts[host].values())

    def has_said(self, hosts: int) -> bool:
        """Return whether hearts of ``hosts`` hosts or more have said a last word."""
        return sum(map(self._said, self.hosts)) >= hosts

    def why(self, hosts: Collection[str]) -> str:
        """Return a text on the loss of ``hosts``."""
        if not any(host in self.hosts for host in hosts):
            return f"no sign of life of {self.in_words(hosts)} since the launch"
        if self.cut.issuperset(hosts):
            return f"no answers arrive at {self.in_words(hosts)}"
        return f"no sign of life of {self.in_words(hosts)} for {SILENT_SECONDS:g} s"

    def in_words(self, hosts: Collection[str]) -> str:
        """Return ``hosts`` as text for a sentence, with the ranks that were heard there."""
        ranks = {host: f" ({ranks_in_words(sorted(found))})" for host, found in self.hosts.items()}
        return hosts_in_words([host + ranks.get(host, "") for host in hosts])


def own_addresses(hosts: Collection[str]) -> list[str]:
    """Return the addresses of this machine that lead to ``hosts``; without hosts, or if none is known, its name."""
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
    """Run the block with the environment variables by which a job that is started in it is heard."""
    if hearing is None:
        yield
        return
    os.environ |= hearing.variables()
    try:
        yield
    finally:
        os.environ.pop(HEARTS)


_hearts: list[subprocess.Popen] = []
"""Hearts that this process has started, kept because Python warns of a child process that is forgotten."""


def start_heart():
    """Start the heart of this rank, if `grsgd run` or `grsgd testbed` watches over the hosts of this job."""
    if os.environ.get(HEARTS) and not _hearts:
        key, places, fence = os.environ[HEARTS].split()
        command = [sys.executable, "-I", "-S", HEART, FROM_STDIN, places, rank() or "0", fence, str(os.getpid())]
        quiet = subprocess.DEVNULL
        heart = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        with suppress(OSError), heart.stdin:  # the heart may have ended already
            heart.stdin.write(f"{key}\n".encode())
        _hearts.append(heart)
