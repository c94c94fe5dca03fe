"""The hosts on which runs are measured: a testbed, the nodes of a cluster, or this machine without emulated links."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.runner.batch import MpiHost
from experiments.runner.run_spec import RunSpec
from grsgd.comm.driver import available_cores
from grsgd.mpi_environment import find_mpiexec
from grsgd.testbed.hosts import Testbed, TestbedError, fair_share

LAUNCH = Path(__file__).parents[2] / "slurm" / "launch.sh"
"""Script that starts ranks on the nodes of a Slurm allocation; arguments: number of ranks, and command."""


class Hosts:
    """The hosts on which runs are measured.

    This base class stands for this machine itself, without a testbed of emulated links.

    hosts, cpu: number of hosts of a testbed, and number of cores of each host. why: reason why the machine has no
    testbed. place: text with all conditions on which times depend, in which `describe` replaces ``{links}`` and
    ``{slow}`` by the run's link rate and slow hosts.
    """

    emulated = False
    calibration_ranks = 2
    nodes = 1

    def __init__(self, hosts: int, cpu: float, why: str = ""):
        self.count, self.cpu, self.why = hosts, cpu, why
        self.place = (
            f"this machine as it is, {describe_machine()}: neither link rates nor a processor for each rank could be "
            "emulated"
        )

    def describe(self, spec: RunSpec) -> str:
        """Return a text with all conditions on which the times of the run depend on these hosts."""
        slow = "".join(f", host {host} {factor:g} times slower" for host, factor in spec.slow_hosts)
        return (spec.place or self.place).replace("{links}", spec.link.rate).replace("{slow}", slow)

    @contextmanager
    def connected(self, spec: RunSpec) -> Iterator[MpiHost]:
        """Return a context in which ranks can be started with the links and processors that the run states."""
        launcher = find_mpiexec()
        yield MpiHost(lambda words: [launcher, *words])

    def command(self, spec: RunSpec) -> str:
        """Return the shell command by which a user can repeat the run on these hosts."""
        return " ".join(["mpiexec -n", str(spec.ranks), "python -m grsgd train", *spec.cli_args()])


class Cluster(Hosts):
    """The nodes of a Slurm allocation, on which the script slurm/launch.sh starts ranks."""

    calibration_ranks = 4

    def __init__(self, hosts: int, cpu: float):
        super().__init__(hosts, cpu)
        self.nodes, partition = int(os.environ["SLURM_JOB_NUM_NODES"]), os.environ.get("SLURM_JOB_PARTITION")
        self.place = f"{self.nodes} nodes of a cluster, partition {partition}; links are as fast as they are"

    @contextmanager
    def connected(self, spec: RunSpec) -> Iterator[MpiHost]:
        yield MpiHost(lambda words: ["bash", str(LAUNCH), *words[1:]])


class EmulatedHosts(Hosts):
    """Hosts of a testbed, whose links and processors are emulated on this machine."""

    emulated = True
    calibration_ranks = 4

    def __init__(self, hosts: int, cpu: float):
        super().__init__(hosts, cpu)
        self.place = f"testbed of {hosts} hosts, {{links}} links, {cpu:g} cores each{{slow}}, of {describe_machine()}"

    @contextmanager
    def connected(self, spec: RunSpec) -> Iterator[MpiHost]:
        with Testbed(self.count, spec.link.rate, self.cpu, dict(spec.slow_hosts)) as testbed:
            yield MpiHost(testbed.mpiexec, testbed.without_cpu_limit)

    def command(self, spec: RunSpec) -> str:
        slow = "".join(f" --slow {host}:{factor:g}" for host, factor in spec.slow_hosts)
        options = f"--hosts {self.count} --rate {spec.link.rate} --cpu {self.cpu:g}{slow}"
        return f"grsgd testbed {options} -- " + super().command(spec).removeprefix("mpiexec ")


def find_hosts(count: int, cpu: float) -> Hosts:
    """Return the best available hosts for measured runs: the nodes of a cluster, a testbed, or this machine."""
    if int(os.environ.get("SLURM_JOB_NUM_NODES", 1)) > 1:
        return Cluster(count, cpu)
    try:
        with Testbed(1, "1gbit", None):
            return EmulatedHosts(count, min(cpu, fair_share(count)))
    except TestbedError as error:
        return Hosts(count, cpu, str(error))


def describe_machine() -> str:
    """Return the number of cores and the processor's model of this machine, as text."""
    try:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        model = None
    return f"{available_cores()} cores, {model[1] if model else platform.machine()}"
