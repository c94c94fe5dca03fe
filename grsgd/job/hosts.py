"""Hosts of a job (``--hosts``, or the nodes of a Slurm allocation): the number of ranks on each host, and checks which
hosts answer."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from grsgd.errors import UsageError
from grsgd.job.hearing import HEART, Hearing

ANSWER_SECONDS = 2.0
"""Seconds in which a host that is asked whether it is alive must answer."""
AGENTS = ("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER_EXEC")
"""Environment variables that name the program by which the launcher starts processes on other hosts."""
SSH = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_SECONDS:.0f}")


class Host(NamedTuple):
    """Host with its number of slots (largest number of ranks on this host)."""

    name: str
    slots: int

    def __str__(self):
        return f"{self.name}:{self.slots}"


def read(text: str, ranks: int) -> list[Host]:
    """Return the hosts in ``text``, such as ``a:4,b``. A host without a number in ``text`` gets ``ranks`` divided by
    the number of hosts, rounded up. Raises UsageError if ``text`` is not a list such as ``a:4,b``, or names a host
    twice."""
    names, share = text.split(","), -(-ranks // len(text.split(",")))
    found = [re.fullmatch(r"([^:\s]+?)(?::([1-9]\d*))?", name.strip()) for name in names]
    if not all(found):
        raise UsageError(f"--hosts {text}: must be host names with their numbers of ranks, such as a:4,b:4")
    hosts = [Host(match[1], int(match[2] or share)) for match in found]
    if len({host.name for host in hosts}) < len(hosts):
        raise UsageError(f"--hosts {text}: names a host twice")
    return hosts


def of_allocation(ranks: int) -> list[Host]:
    """Return the nodes of the Slurm allocation of this process; an empty list outside of an allocation."""
    nodes = os.environ.get("SLURM_JOB_NODELIST")
    if not nodes:
        return []
    try:
        show = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    names = show.stdout.split()
    return read(",".join(names), ranks) if names else []


def in_allocation() -> bool:
    """Return whether this process is in an allocation of Slurm, where srun starts processes on the hosts."""
    return "SLURM_JOB_ID" in os.environ


def placed(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """Return hosts from the beginning of ``hosts`` that together hold ``ranks`` ranks, or all hosts if they hold fewer
    ranks. The hosts of ``hosts`` that are not returned are spare."""
    found: list[Host] = []
    for host in hosts:
        if (held := slots(found)) < ranks:
            found.append(Host(host.name, min(host.slots, ranks - held)))
    return found


def slots(hosts: Sequence[Host]) -> int:
    """Return the number of ranks that may run on ``hosts`` together."""
    return sum(host.slots for host in hosts)


def options(launcher: str, hosts: Sequence[Host]) -> list[str]:
    """Return the command-line options by which ``launcher`` starts the ranks on ``hosts``. ``launcher`` is "srun" or
    the name of an MPI library."""
    if launcher == "srun":
        return [f"--nodes={len(hosts)}", f"--nodelist={','.join(host.name for host in hosts)}"]
    if launcher == "MPICH":
        return ["-hosts", ",".join(map(str, hosts))]
    # without the option --map-by, all ranks may run on the first host
    return ["--host", ",".join(map(str, hosts)), "--map-by", "slot:OVERSUBSCRIBE"]


def answering(
    hosts: Sequence[Host], missed: Collection[str] = (), seconds: float = ANSWER_SECONDS, silently: bool = False
) -> list[Host]:
    """Return the hosts that answer within ``seconds``. A host answers if a process can be started on the host, and
    datagrams of the started process arrive at this process.

    All hosts are asked at the same time. The function returns as soon as all hosts that are not named in ``missed``
    have answered. If ``missed`` names all hosts, the function waits for all hosts. With ``silently`` a host also counts
    as answering if the started process ends without an error, because a firewall may block datagrams.
    """
    hearing, come = Hearing([host.name for host in hosts]), set()
    awaited = {number for number, host in enumerate(hosts) if host.name not in missed} or {*range(len(hosts))}
    heart = [sys.executable, "-I", "-S", str(HEART), *hearing.arguments]
    asked = [start_on(host.name, [*heart, str(number), "0", "0"]) for number, host in enumerate(hosts)]
    deadline = time.monotonic() + seconds
    try:
        while not awaited <= come and time.monotonic() < deadline:
            hearing.look()
            come = {number for ranks in hearing.hosts.values() for number in ranks}
            if silently:
                come |= {number for number, process in enumerate(asked) if process.poll() == 0}
            time.sleep(0.02)
    finally:
        for process in asked:
            process.kill()
            process.wait()
    return [host for number, host in enumerate(hosts) if number in come]


def run_on(hosts: Collection[str], program: list[str], seconds: float = ANSWER_SECONDS):
    """Run ``program`` on all ``hosts`` at once, and wait for at most ``seconds`` altogether. Errors of starting or
    running the program are ignored."""
    running, deadline = [], time.monotonic() + seconds
    for host in hosts:
        with suppress(OSError):
            running.append(start_on(host, program))
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.0))
        process.kill()
        process.wait()


def start_on(host: str, program: list[str]) -> subprocess.Popen:
    """Start ``program`` (the list of the words of its command line) on ``host``, without input and output."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*agent(host), *program_for(program)], stdin=quiet, stdout=quiet, stderr=quiet)


def is_same(name: str, other: str) -> bool:
    """Return whether ``name`` and ``other`` may name the same host: they are equal, or they differ only by a domain at
    the end."""
    return f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.")


def agent(host: str) -> list[str]:
    """Return the words of a command, such as ``ssh HOST``, that runs the words after it as a program on ``host``."""
    if in_allocation():
        return ["srun", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--overlap", "--mpi=none"]
    own = next((os.environ[name] for name in AGENTS if os.environ.get(name)), None)
    return [*(shlex.split(own) if own else SSH), host]


def program_for(program: list[str]) -> list[str]:
    """Return ``program``, a list of words, in the form that must follow the words of `agent`. Outside of an allocation
    of Slurm the words are quoted and joined into one word, because ssh passes words to a shell."""
    return program if in_allocation() else [shlex.join(program)]
