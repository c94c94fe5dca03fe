"""Search for hosts that die while `grsgd run` launches a job. A host that has sent no sign of life is asked whether it
is alive."""

import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence

from grsgd.job import hosts as places
from grsgd.job.hosts import Host

LAUNCH_SECONDS = 60.0
"""Each host should have sent a datagram within this number of seconds after the launch. After `LAUNCH_SECONDS`, hosts
that have sent no datagram are asked whether they are alive, at intervals of `LAUNCH_SECONDS`."""
AGAIN_SECONDS = 4.0
"""If a host has not answered in a round of questions, all hosts are asked again after this number of seconds. Between
two rounds of questions, this process answers the heart processes of other hosts, so that they kill no rank."""


class Absence:
    """Search for lost hosts among ``hosts``, on which a job is being launched.

    A launcher waits for hours for a host that loses power while the job is launched. A host whose heart processes have
    sent no datagram is therefore asked to start a process, which answers. A host is lost if the host does not answer in
    two successive rounds of questions. A host that starts a process is not lost, although a firewall may block the
    datagrams of its heart processes.

    Asking hosts may become impossible, for example if a key of ssh is no longer valid. So a round of questions to which
    no host answers has no effect unless ``has_answered`` is True. ``has_answered`` is True if all hosts answered just
    before the launch, and no round of questions has been answered since. A job on a single host asks this host before
    the launch, because no other host can show that asking is possible. If a job has a single host, and this host does
    not answer, the constructor prints a line on stderr.
    """

    def __init__(self, hosts: Sequence[Host], has_answered: bool, clock: Callable[[], float] = time.monotonic):
        self.hosts, self.has_answered, self.clock = hosts, has_answered, clock
        self._missed: set[str] = set()
        """Names of the hosts that did not answer in the previous round of questions."""
        if len(hosts) == 1 and not has_answered and not is_here(hosts[0].name):
            self.has_answered = bool(self._ask())
            if not self.has_answered:
                line = f"host {hosts[0].name} does not answer: its loss during the launch would not be noticed"
                print(f"grsgd: {line}", file=sys.stderr, flush=True)
        self._due = clock() + LAUNCH_SECONDS

    def look(self, heard: Collection[str]) -> list[str]:
        """Return the names of hosts whose loss was noticed in this call. ``heard`` has the names of the hosts
        whose heart processes have sent datagrams.

        Asking all hosts takes at most `grsgd.job.hosts.ANSWER_SECONDS` seconds.
        """
        if self.clock() < self._due:
            return []
        unheard = self._unheard(heard)
        there = self._ask() if unheard else []
        missed = {name for name in unheard if name not in there} if there or self.has_answered else set()
        lost = [name for name in unheard if name in missed & self._missed]
        self._missed = missed.difference(lost)
        self.has_answered = self.has_answered and not there
        self._due = self.clock() + (AGAIN_SECONDS if self._missed else LAUNCH_SECONDS)
        return lost

    def _unheard(self, heard: Collection[str]) -> list[str]:
        """Return the names of the hosts that have sent no datagram. This machine is left out of the list, because it is
        alive. If as many hosts have sent datagrams as the job has hosts, the list is empty, because hosts may use other
        names in datagrams."""
        if len(heard) >= len(self.hosts):
            return []
        names = [host.name for host in self.hosts if not any(places.is_same(host.name, other) for other in heard)]
        return [name for name in names if not is_here(name)]

    def _ask(self) -> list[str]:
        try:
            return [host.name for host in places.answering(self.hosts, silently=True)]
        except OSError:  # without the program ssh no host can be asked, so all hosts count as alive
            return [host.name for host in self.hosts]


def is_here(name: str) -> bool:
    """Return whether the host ``name`` is this machine."""
    if places.is_same(name, socket.gethostname()):
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((name, 9))
        except OSError:
            return False
        return way.getsockname()[0] == way.getpeername()[0]
