"""Heart process of a rank: a small process that tells ``grsgd run``, by datagrams, that the rank's host is alive.

This file is run as a script that imports only Python's standard library. So a heart process starts in milliseconds and
needs little memory. `grsgd.job.hearing` receives the datagrams.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress

BEAT_SECONDS = 0.25
"""Seconds between two datagrams of a heart process."""
STOPPED_SECONDS = 1.0
"""If more seconds than this number lie between two datagrams of a heart process, its whole host was stopped and could
receive no answer."""
BEATS, TOLD, BYE, CUT, HERE, SEEN, PAUSE = "beats", "told", "bye", "cut", "here", "seen", "pause"
"""Words in datagrams. A heart process sends ``beats`` again and again, ``told`` after a signal that ends the job, and
``bye`` after the end of its rank. A heart process that receives no answers of ``grsgd run`` kills its rank and sends
``cut``. A host that is asked whether it is alive sends ``here``. The process of ``grsgd run`` answers each datagram
with ``seen``, and sends ``pause`` before ``grsgd run`` is stopped."""
FROM_STDIN = "-"
"""Value of the argument ``key`` of this script which says that the key must be read from stdin. The key itself is not
passed as an argument, because all users of a host can read the arguments of every process."""
REPEATS = 3
"""Number of times that a heart process sends a word other than ``beats``, because datagrams may be lost."""


def addresses_of(text: str) -> list[tuple[str, int]]:
    """Return (address, port) of each entry of ``text``, such as ``"10.0.0.1:4000,head:4000"``. Entries of ``text`` with
    unknown host names are left out."""
    found = []
    for place in text.split(","):
        name, _, port = place.rpartition(":")
        try:
            found.append((socket.gethostbyname(name), int(port)))
        except OSError:
            continue
    return found


class Heart:
    """Sender of the datagrams of rank ``rank`` to all addresses in ``text``. Each datagram begins with ``key``, the key
    of the job.

    If ``fence_seconds`` is above 0, the rank's process ``parent`` (a PID) is killed after ``fence_seconds`` without an
    answer, because the job then goes on without this host.
    """

    def __init__(self, key: str, text: str, rank: str, fence_seconds: float = 0.0, parent: int = 0):
        self.key, self.rank, self.places = key, rank, addresses_of(text)
        self.fence_seconds, self.parent, self.seen = fence_seconds, parent, None
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.is_told = False

    def say(self, word: str, times: int = 1):
        """Send a datagram with the word ``word``, such as ``beats``, to all addresses, ``times`` times."""
        line = f"{self.key} {self.rank} {word} {socket.gethostname()}".encode()
        for _ in range(times):
            for place in self.places:
                try:
                    self.socket.sendto(line, place)
                except OSError:  # sending failed, because the link is down or its queue is full
                    continue

    def hear(self):
        """Receive the answers of ``grsgd run`` that have arrived."""
        while True:
            try:
                words = self.socket.recv(200).decode(errors="replace").split()
            except OSError:
                return
            if words == [self.key, SEEN]:
                self.seen = time.monotonic()
            elif words == [self.key, PAUSE]:
                self.seen = None

    def beat(self):
        """Send signs of life of this host until the rank has ended. Kill the rank if no answers of ``grsgd run``
        arrive."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP):
            signal.signal(number, self._tell if number == signal.SIGTERM else signal.SIG_IGN)
        while os.getppid() == self.parent:
            self.say(BEATS)
            began = time.monotonic()
            time.sleep(BEAT_SECONDS)
            if time.monotonic() - began > STOPPED_SECONDS and self.seen is not None:
                self.seen = time.monotonic()
            self.hear()
            if self.fence_seconds and self.seen is not None and time.monotonic() - self.seen > self.fence_seconds:
                with suppress(ProcessLookupError):
                    os.kill(self.parent, signal.SIGKILL)
                self.say(CUT, REPEATS)
                return
        self.say(BYE, REPEATS)

    def _tell(self, number, frame):
        if not self.is_told:
            self.is_told = True
            self.say(TOLD, REPEATS)


if __name__ == "__main__":
    key, places, rank, fence, parent = sys.argv[1:]
    if key == FROM_STDIN:
        key = sys.stdin.readline().strip()
    heart = Heart(key, places, rank, float(fence), int(parent))
    if int(parent):
        heart.beat()
    else:
        heart.say(HERE, REPEATS)
