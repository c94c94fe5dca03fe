#!/usr/bin/env python3
"""A Slurm cluster on this machine, with which users can try batch scripts.

Every node of the cluster is a host of a testbed. The script needs root::

    slurm/local_cluster.py up --nodes 4
    export SLURM_CONF=...                    # as printed by ``up``
    sbatch slurm/train.sbatch
    slurm/local_cluster.py down

The programs Slurm and munge are packages of the Linux distribution. In this cluster, Slurm and munge read and write
only files in the testbed's folder. The Slurm and munge of the machine itself, if they are installed, are not changed.
"""

import argparse
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv" / "bin" / "python"
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
SECONDS = 60
"""Seconds in which all nodes must become idle after the start, and in which a cluster must disappear after its end."""
CONF = """\
ClusterName={name}
SlurmctldHost={head}({controller})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/task-prolog
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=local Nodes=ALL Default=YES
"""
"""Configuration file of Slurm.

cred_expire: the seconds for which a requeued job waits; Slurm's default is two minutes. config_overrides: a node has
the number of CPUs that this file states, even if the machine has fewer. TmpFS: folder in which PMIx makes a folder for
every step. Each node has its own TmpFS, because PMIx's folder has the same name on every node.
"""
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
"""Configuration of control groups, which Slurm reads although no plugin in ``CONF`` uses control groups.

The plugin cgroup/v1 does not look for control groups at its start.
"""
TASK_PROLOG = """\
#!/bin/sh
# The special properties of this cluster: its nodes share the cores and the files of one machine, are connected only by
# a network, and may run jobs of root.
echo export OMPI_MCA_mpi_yield_when_idle=1
echo export PRTE_MCA_prte_tmpdir_base={folder}/tmp-$SLURMD_NODENAME
echo export OMPI_MCA_pml=ob1
echo export OMPI_MCA_btl=tcp,self
echo export OMPI_ALLOW_RUN_AS_ROOT=1
echo export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"""
"""Script that Slurm runs before each task, to set the task's environment."""


class ClusterError(RuntimeError):
    """Error: the cluster does not exist, or cannot be made.

    The message of a ClusterError is one line.
    """


def main() -> int:
    parser = argparse.ArgumentParser(prog="slurm/local_cluster.py", description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True, metavar="up | down | status")
    for sub in (actions.add_parser("up", help="start a cluster"), actions.add_parser("keep")):
        sub.add_argument("--nodes", type=int, default=4, metavar="N", help="(default: %(default)s)")
        sub.add_argument("--rate", default="1gbit", help="rate of each node's link (default: %(default)s)")
        sub.add_argument("--gpus", type=int, default=0, metavar="N", help="pretended GPUs of each node (default: 0)")
    sub = actions.add_parser("down", help="end a cluster and remove all parts of it")
    sub.add_argument("name", nargs="?", help="name such as tb0; needed if there are several clusters")
    actions.add_parser("status", help="list the clusters of this machine")
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # some users' PATH lacks the folders of daemons
    try:
        {"up": up, "keep": keep, "down": down, "status": status}[options.action](options)
    except ClusterError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def up(options):
    """Start the keeper process of a cluster in the background, and wait until all nodes are idle."""
    check_machine()
    keeper = subprocess.Popen(
        [sys.executable, "-m", "slurm.local_cluster", "keep", "--nodes", str(options.nodes), "--rate", options.rate,
         "--gpus", str(options.gpus)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        ready, _, _ = select.select([keeper.stdout], [], [], 2 * SECONDS)
        said = keeper.stdout.read() if ready else f"the keeper, process {keeper.pid}, says nothing"
    except KeyboardInterrupt:
        keeper.terminate()
        keeper.wait(SECONDS)
        raise
    if keeper.poll() is None and "export SLURM_CONF=" in said:
        print(said, end="")
        return
    keeper.terminate()
    keeper.wait(SECONDS)
    raise ClusterError(said.strip().removeprefix("slurm/local_cluster.py: error: "))


def check_machine():
    """Raise ClusterError if a cluster cannot run on this machine."""
    if os.geteuid() != 0:
        raise ClusterError("a cluster on this machine needs root, for its network: try sudo")
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise ClusterError(f"there is no {missing[0]} here; Debian: apt-get install {PACKAGES}")


def keep(options):
    """Run a cluster until SIGTERM, in the keeper process.

    When all nodes are idle, the keeper process prints how to use the cluster, and nothing else.
    """
    hosts = testbed_hosts()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with hosts.Testbed(hosts=options.nodes, rate=options.rate) as testbed:
            folder = testbed.folder / "slurm"
            start(testbed, folder, options.gpus)
            print(usage(testbed, folder), flush=True)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)  # the command `up` reads the output of this process until the output ends
            os.dup2(null, 2)
            while True:
                signal.pause()
    except hosts.TestbedError as error:
        raise ClusterError(str(error)) from None


def start(testbed, folder: Path, gpus: int):
    """Start all daemons of the cluster in the testbed, and wait until all nodes are idle. Raises ClusterError.

    The daemons end when the testbed ends.
    """
    write(testbed, folder, join(testbed), gpus)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    files = {"socket": "munge.socket", "key-file": "munge.key", "seed-file": "munge.seed", "pid-file": "munged.pid"}
    munged = ["munged", "--foreground", f"--log-file={folder}/munged.log"]
    munged += [f"--{option}={folder / file}" for option, file in files.items()]
    started = {}

    def daemon(name: str, host: str, command: list):
        with open(folder / f"{name}.out", "w") as out:
            started[name] = subprocess.Popen(
                testbed.enter(host, command), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def wait_for(what: str, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            ended = [name for name, process in started.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                why = f"{ended[0]} has ended" if ended else f"not within {SECONDS} s"
                raise ClusterError(f"{what}: {why}; {last_words(folder)}")
            time.sleep(0.1)

    daemon("munged", testbed.head, munged)
    wait_for("munged", (folder / "munge.socket").exists)
    daemon("slurmctld", testbed.head, ["slurmctld", "-D"])
    for host in testbed.hosts:
        daemon(f"slurmd-{host}", host, ["slurmd", "-D", "-N", host])
    wait_for("nodes idle", lambda: idle(environment) == len(testbed.hosts))


def join(testbed) -> str:
    """Connect the head node to the network of this machine, so that Slurm's commands work in any shell.

    Returns the address of Slurm's controller, which is the same in shells of the machine and on the nodes.
    """
    number = int(testbed.name.removeprefix("tb"))
    here, there = f"169.254.77.{4 * number + 1}", f"169.254.77.{4 * number + 2}"
    for command in (
        f"link add {testbed.name}-slurm type veth peer name slurm netns {testbed.head}",
        f"address add {here}/30 dev {testbed.name}-slurm",
        f"link set {testbed.name}-slurm up",
        f"-n {testbed.head} address add {there}/30 dev slurm",
        f"-n {testbed.head} link set slurm up",
        *(f"-n {host} route add {there} via {testbed.address(testbed.head)}" for host in testbed.hosts),
    ):
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"ip {command}: {done.stderr.strip()}")
    return there


def write(testbed, folder: Path, controller: str, gpus: int):
    """Write all files of the cluster into ``folder``.

    Links to /dev/null stand for the device files of pretended GPUs.
    """
    folder.mkdir()
    (folder / "state").mkdir()
    for host in testbed.hosts:
        (folder / f"spool-{host}").mkdir()
        (folder / f"tmp-{host}").mkdir()
        (folder / f"tmp-{host}").chmod(0o1777)
    cpus = max(8, os.cpu_count() or 1)
    has = f" Gres=gpu:{gpus}" if gpus else ""
    nodes = [f"NodeName={host} NodeAddr={testbed.address(host)} CPUs={cpus}{has}" for host in testbed.hosts]
    for gpu in range(gpus):
        (folder / f"gpu{gpu}").symlink_to(os.devnull)
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n" if gpus else "")
    conf = CONF.format(
        name=testbed.name, head=testbed.head, controller=controller, folder=folder, nodes="\n".join(nodes)
    )
    (folder / "slurm.conf").write_text(conf)
    (folder / "cgroup.conf").write_text(CGROUP_CONF)
    (folder / "task-prolog").write_text(TASK_PROLOG.format(folder=folder))
    (folder / "task-prolog").chmod(0o755)
    (folder / "munge.key").touch(0o600)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "keeper.pid").write_text(f"{os.getpid()}\n")


def idle(environment: dict) -> int:
    """Return the number of the cluster's nodes that are idle."""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N %t"],
            env=environment, capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
        return sum(line.split()[-1] == "idle" for line in done.stdout.splitlines())
    return 0


def last_words(folder: Path) -> str:
    """Return the lines of the daemons' logs that say why the cluster failed.

    The message of a failed start needs lines of the logs, because the logs are removed with the cluster.
    """
    paths = sorted([*folder.glob("*.log"), *folder.glob("*.out")])
    lines = [f"{path.name}: {line}" for path in paths for line in path.read_text(errors="replace").splitlines()]
    for word in ("fatal", "error", ""):
        if found := [line for line in lines if word in line.lower()]:
            return "; ".join(found[-3:])
    return f"the logs in {folder} are empty"


def usage(testbed, folder: Path) -> str:
    return f"""\
cluster {testbed.name}: {len(testbed.hosts)} nodes, {testbed.hosts[0]} to {testbed.hosts[-1]}, all idle

    export SLURM_CONF={folder}/slurm.conf
    sbatch slurm/train.sbatch

srun and salloc work only on its head: grsgd/testbed/enter.sh {testbed.head} bash
logs: {folder}/*.log; the end: slurm/local_cluster.py down {testbed.name}"""


def clusters() -> list[str]:
    """Return the names of the clusters on this machine, including clusters whose keeper process was killed."""
    return sorted(path.parents[1].name for path in testbed_hosts().STATE.glob("*/slurm/keeper.pid"))


def testbed_hosts():
    """Return the module of testbeds.

    The module is imported late, because it needs the project's environment, which ``up`` does not need.
    """
    try:
        from grsgd.testbed import hosts
    except ModuleNotFoundError as error:
        raise ClusterError(f"{error}: run it in the environment of this project") from None
    return hosts


def down(options):
    """End a cluster, and return when all its parts are gone."""
    hosts, found = testbed_hosts(), clusters()
    if options.name is None and len(found) > 1:
        raise ClusterError(f"there are several clusters, give the name of one: {', '.join(found)}")
    if not found or options.name not in (None, *found):
        raise ClusterError(f"no cluster {options.name}" if options.name else "no cluster is up")
    if os.geteuid() != 0:
        raise ClusterError("ending a cluster needs root: try sudo")
    name = options.name or found[0]
    folder = hosts.STATE / name
    try:
        with hosts.only_one():
            if not folder.exists():  # another process has removed the cluster after its keeper process was killed
                return
            if hosts.left_behind(name):
                hosts.remove(name)
                return
    except hosts.TestbedError as error:
        raise ClusterError(str(error)) from None
    with suppress(ProcessLookupError):
        os.kill(int((folder / "slurm" / "keeper.pid").read_text()), signal.SIGTERM)
    # The kernel removes the cluster's network interface only some time after the network namespace.
    parts = [folder, Path(f"/sys/class/net/{name}-slurm")]
    deadline = time.monotonic() + SECONDS
    while any(part.exists() for part in parts):
        if time.monotonic() > deadline:
            left = ", ".join(str(part) for part in parts if part.exists())
            raise ClusterError(f"cluster {name} is still there after {SECONDS} s: {left}")
        time.sleep(0.05)


def status(options):
    """Print the name and the nodes of every cluster on this machine."""
    for name in clusters():
        conf = testbed_hosts().STATE / name / "slurm" / "slurm.conf"
        print(f"cluster {name}: export SLURM_CONF={conf}", flush=True)
        environment = os.environ | {"SLURM_CONF": str(conf)}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["sinfo", "--long", "--Node"], env=environment, timeout=30, check=False)


if __name__ == "__main__":
    # Under sudo, the Python that runs this script may not be the Python of the project's environment.
    if find_spec("numpy") is None and os.access(ENVIRONMENT, os.X_OK) and sys.executable != str(ENVIRONMENT):
        os.execv(ENVIRONMENT, [ENVIRONMENT, *sys.argv])
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
