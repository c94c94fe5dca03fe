"""Job of ``grsgd run`` that is started again after the loss of a host (``--restarts``)."""

import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from grsgd.cli.arguments import check_at_least
from grsgd.cli.outcome import print_error
from grsgd.config import Config
from grsgd.errors import ConfigError, UsageError
from grsgd.job import hosts as places
from grsgd.job import start, words
from grsgd.job.absence import Absence
from grsgd.job.ending import ENDING, kill_orphans
from grsgd.job.hearing import Hearing, heard_by
from grsgd.job.hosts import Host
from grsgd.job.restarts import Loss, variables
from grsgd.job.signals import CHECKPOINTED, EXIT_CODE
from grsgd.text import hosts_in_words
from grsgd.training import memory_folder

OVERLAP = "SLURM_OVERLAP"
"""Environment variable that lets srun start ranks on cores that Slurm counts as used. After the loss of a node, Slurm
still counts the cores of the job's previous start as used."""
WITHOUT_GRSGD = (
    "no rank of this job has called grsgd: unless the script itself connects its {} processes, each process has worked "
    "alone: call grsgd.distribute(), or give Trainer, Fabric or Accelerate the strategy of grsgd"
)
"""Warning that is printed after a job whose script has never called grsgd."""
PATIENCE_SECONDS = 30.0
"""Seconds after the loss of a host in which enough hosts for a restart must answer. If too few hosts answer within
`PATIENCE_SECONDS`, the job ends."""
ROUND_SECONDS = 1.0
"""Seconds between two rounds in which all hosts are asked whether they are alive, after the loss of a host."""


class Restarting:
    """Job of ``grsgd run`` on ``ranks`` ranks, which can be started again after the loss of a host.

    ``options`` are the options of ``grsgd run``. ``of_train`` are the options of ``grsgd train``, or None for a script.
    ``hosts`` are the hosts in the option ``--hosts``. If ``hosts`` is empty, the launcher chooses the hosts of the
    job's first start. After the loss of a host, a job without ``hosts`` runs on nodes of the Slurm allocation.
    """

    def __init__(self, options, of_train, ranks: int, hosts: Sequence[Host]):
        self.options, self.of_train, self.wanted, self.ranks = options, of_train, ranks, ranks
        self.config: Config | None = None
        self.hosts = list(hosts) or (places.of_allocation(ranks) if options.restarts else [])
        self.missed: set[str] = set()
        """Names of the hosts that were lost, or that have not answered when they were last asked."""
        self.used = places.placed(hosts, ranks)
        self.left: set[str] = set()
        """Names of the hosts of each attempt (start of the job) that the loss of a host has ended."""
        self.losses: list[Loss] = []
        self.id = secrets.token_hex(8)
        """Id of the job, equal in all attempts (starts of the job)."""
        self.asked = 0
        """Number of the signal that has asked for the end of the job; 0 without a signal."""
        self.folder = (of_train.checkpoint or of_train.resume) if of_train else None
        if options.restarts and of_train and not self.folder:
            raise UsageError("--restarts: only with --checkpoint FOLDER, from which the job goes on")
        if options.restarts and of_train and not of_train.resume and self._has_checkpoint():
            raise UsageError(
                f"--checkpoint {self.folder}: there are checkpoints of another run: --resume {self.folder} goes on "
                "with it; or name another folder"
            )
        if of_train and of_train.memory is not None:
            check_at_least("--memory", of_train.memory, 1)
            if not options.restarts:
                raise UsageError("--memory: only with --restarts N, which starts the job again")
            if len(places.placed(self.hosts, ranks)) == 1:
                raise UsageError(f"--memory: all {ranks} ranks are on one host, so no other host can keep their states")
        if options.restarts and not self.hosts:
            raise UsageError("--restarts: only with --hosts a:4,b:4, or in an allocation of Slurm")

    def command(self) -> start.JobCommand:
        """Return the command that starts the job. After a loss of a host, the command goes on from the last checkpoint,
        if a checkpoint exists."""
        options, arguments = self.options, list(self.options.arguments)
        if self.losses and self._has_checkpoint():
            arguments += ["--resume", self.folder]
        return start.job(
            options.target, arguments, self.ranks, options.launcher, options.spares, options.bind, self.used
        )

    def run(self) -> int:
        """Run the job until it ends without the loss of a host, or until all ``--restarts`` are used. Return the job's
        exit code.

        Between two attempts (starts of the job) the job has no results to save. So a signal that arrives between two
        attempts ends the job, except SIGUSR2, which has no effect. A signal that has asked for the end of an attempt
        (start of the job) also prevents the next attempt.
        """
        before = {}
        if self.options.restarts:
            found = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING, *start.PASSED_ON)}
            before = {number: handler for number, handler in found.items() if handler != signal.SIG_IGN}
        try:
            for number in before:
                signal.signal(number, self._ask)
            return self._attempts()
        except KeyboardInterrupt:
            if self.asked:
                by, again = signal.Signals(self.asked).name, " again" if self.losses else ""
                print_error(f"run: ended by {by} before the ranks were started{again}{self._remedy()}")
            return CHECKPOINTED if self.losses and self._has_checkpoint() else EXIT_CODE
        finally:
            self._clear_hosts_left_behind()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clear_hosts_left_behind(self):
        """Remove the job's checkpoints in memory from hosts on which no rank of the last attempt (start of the job) has
        run, if these hosts answer."""
        if self.of_train and self.of_train.memory is not None:
            behind = self.left - {host.name for host in self.used}
            places.run_on(behind, memory_folder.removal(Path(self.of_train.memory_folder), self.id))

    def _ask(self, number, frame):
        if number != signal.SIGUSR2:
            self.asked = number

    def _heed(self):
        """Raise KeyboardInterrupt if a signal has asked for the end of the job."""
        if self.asked:
            raise KeyboardInterrupt

    def _attempts(self) -> int:
        while True:
            code, loss = self._attempt()
            if loss is None:
                return code
            self.losses.append(loss)
            self.left |= {host.name for host in self.used or self.hosts}
            if len(self.losses) > self.options.restarts:
                if most := self.options.restarts:
                    losses = "; ".join(map(str, self.losses))
                    print_error(f"run: --restarts {most} is used up{self._remedy()}: {losses}")
                return code
            if not self._move():
                return code
            number, on = f"{len(self.losses)} of {self.options.restarts}", ", ".join(map(str, self.used))
            print(f"grsgd: restart {number}: {self.ranks} ranks on {on}", file=sys.stderr, flush=True)

    def _attempt(self) -> tuple[int, Loss | None]:
        """Run the job once. Return the exit code of the job, and the `Loss` of hosts that has ended the job, or
        None."""
        job, trains = self.command(), self.of_train is not None
        print(job if self.options.verbose else job.short(), file=sys.stderr, flush=True)
        hearing = self._hearing()
        os.environ |= variables(self.losses, self.id)
        if self.losses:
            os.environ[OVERLAP] = "1"
        with words.asked_for(self.of_train.out if trains else None, bool(self.hosts)) as asked, heard_by(hearing):
            self._heed()
            launched = start.run(job, gently=trains, hearing=hearing)
            code, line = asked.judged(launched, leaves_file=trains and not self.of_train.check)
            lost = "" if hearing is None or self._has_ended(code, hearing) else self._lost(hearing)
            self.asked = self.asked or (hearing.asked if hearing else 0)
            if self.losses:
                self.losses[-1] = self.losses[-1]._replace(sequel=asked.gone_on())
            # ranks on other hosts possibly cannot write to the folder of word files
            is_on_this_host = not self.hosts and not places.in_allocation()
            if code == 0 and not trains and self.ranks > 1 and is_on_this_host and asked.is_without_grsgd():
                print(f"grsgd: {WITHOUT_GRSGD.format(self.ranks)}", file=sys.stderr, flush=True)
        if lost:
            kill_orphans()
        if problem := f"lost {lost}" if lost else line:
            print_error(f"run: {problem}")
        return (code or 1, Loss(hearing.lost_at or time.time(), lost)) if lost else (code, None)

    def _has_ended(self, code: int, hearing: Hearing) -> bool:
        """Return whether the job has ended by itself or by a signal, not by the loss of a host. For a script, ``code``
        0 is a regular end only if a rank has begun. Open MPI's launcher also returns 0 if a host dies before the ranks
        begin."""
        return code in (EXIT_CODE, CHECKPOINTED) or (code == 0 and (self.of_train is not None or bool(hearing.hosts)))

    def _hearing(self) -> Hearing | None:
        """Return the `Hearing`, which notices lost hosts while the job runs; None for a job on this host only."""
        if self.hosts or int(os.environ.get("SLURM_JOB_NUM_NODES") or 1) > 1:
            absence = Absence(self.used, has_answered=bool(self.losses))
            names, fences = [host.name for host in self.hosts], self.options.restarts > 0
            return Hearing(names, fences=fences, absent=absence.look)
        return None

    def _lost(self, hearing: Hearing) -> str:
        """Return a text with the hosts that the job has lost, and the ranks of these hosts; "" if no host was lost.

        If the ranks' heart processes (`grsgd.job.heart`) do not show which hosts were lost, all hosts of the job are
        asked whether they are alive. In an allocation of Slurm a host is also asked if its heart processes have sent no
        last datagram, because srun may kill the heart processes of a living host.
        """
        known = [*hearing.lost]
        lost = hearing.conclude()
        doubtful = {
            name: next((host for host in self.hosts if places.is_same(host.name, name)), Host(name, 1))
            for name in lost
            if places.in_allocation() and name not in known and name not in hearing.cut
        }
        there = places.answering([*doubtful.values()]) if doubtful else []
        lost = [name for name in lost if doubtful.get(name) not in there]
        self.missed |= {host.name for host in self.hosts if any(places.is_same(host.name, name) for name in lost)}
        if lost:
            return hearing.in_words(lost)
        used = self.used or self.hosts
        if hearing.has_said(len(used)):
            return ""
        there = places.answering(used)
        silent = [host.name for host in used if host not in there]
        self.missed |= {*silent}
        return hosts_in_words(silent) if silent else ""

    def _move(self) -> bool:
        """Place the ranks on hosts that answer. Hosts that were lost or did not answer before are the last choice.
        Return whether the job can train with some number of ranks on the hosts that answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self._heed()
            self.hosts.sort(key=lambda host: host.name in self.missed)
            there = places.answering(self.hosts, self.missed)
            self.missed = {host.name for host in self.hosts if host not in there}
            most = min(self.wanted, places.slots(there))
            self.ranks = next((ranks for ranks in range(most, 0, -1) if not self._refusal(ranks)), 0)
            self.used = places.placed(there, self.ranks)
            if self.ranks:
                return True
            are_all = len(there) == len(self.hosts)
            if are_all or time.monotonic() > deadline:
                break
            time.sleep(ROUND_SECONDS)
        asked, found = (", ".join(map(str, hosts)) or "none" for hosts in (self.hosts, there))
        why = f"; with {most} rank{'s' * (most > 1)}: {self._refusal(most)}" if most else ""
        few = "all hosts answer, but are too few" if are_all else f"too few hosts answer within {PATIENCE_SECONDS:g} s"
        print_error(f"run: {few}{self._remedy()}: {found} of {asked}{why}")
        return False

    def _remedy(self) -> str:
        return f" (to go on later: --resume {self.folder})" if self._has_checkpoint() else ""

    def _has_checkpoint(self) -> bool:
        return self.folder is not None and any(Path(self.folder).glob("samples-*/rank-*.ckpt"))

    def _refusal(self, ranks: int) -> str:
        """Return the reason why the job cannot train with ``ranks`` processes; "" if the job can."""
        spares = (self.of_train or self.options).spares or 0
        if ranks <= spares:
            return f"all of them are spares, --spares {spares}"
        try:
            if self.config is not None:
                self.config.check_ranks(ranks - spares)
        except ConfigError as error:
            return str(error)
        return ""
