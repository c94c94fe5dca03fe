"""Commands that train: ``train`` on the ranks of a job, ``run`` in a new job, ``simulate`` in simulated time, and
``sweep`` in many runs."""

import os
import sys
import time
from pathlib import Path

from grsgd.cli.arguments import check_at_least, default_out, load_config, loggers, path_or_none
from grsgd.cli.outcome import announce, exit_code, print_error
from grsgd.comm.watchdog import PASSING_ON_SECONDS, within
from grsgd.errors import UsageError
from grsgd.job.progress_line import ProgressLine
from grsgd.job.startup import StartUp, importing
from grsgd.mpi_environment import rank, say

SIZE_VARIABLES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_NTASKS",
)
"""Environment variables in which launchers give the number of ranks of a job."""


def train(options) -> int:
    """train on all ranks of the job: mpiexec -n 4 python -m grsgd train CONFIG.toml"""
    from grsgd.job.signals import Interruption

    if options.check:
        return check(options, int(count_of_ranks()) if options.ranks is None else options.ranks)
    if options.ranks is not None:
        options.on_ranks = False  # no job must end after this error, because MPI has not started
        n = options.ranks
        raise UsageError(f"--ranks {n}: only with --check; `grsgd run -n {n}` starts {n} ranks")
    # a signal may arrive while torch is imported, which takes seconds
    with Interruption(not_yet_training, lambda: None):
        return train_on_all_ranks(options)


def not_yet_training(reason: str):
    """End this process after a signal that arrives before MPI has started, or after the run. The thread that handles
    signals calls this function."""
    if rank() in (None, "0"):
        say(f"{reason} outside of training")
    time.sleep(PASSING_ON_SECONDS)
    os._exit(130)


def train_on_all_ranks(options) -> int:
    """Train on this rank, and return the exit code of the command. If the run ended early, lost ranks, or could survive
    the death of ranks, this process ends before the function returns."""
    start_up = StartUp(options.verbose)
    with ProgressLine(is_shown=rank() in (None, "0")) as line:
        line.doing(f"starting {ranks()}", only_live=True)
        with importing():
            from grsgd.job import launch, words
            from grsgd.job.conclusion import SavedElsewhere
            from grsgd.job.keeping import Keeping
            from grsgd.job.rescue import path_of
            from grsgd.job.run import run
            from grsgd.runs.ending import Ended, how_ended
            from grsgd.training.checkpoints import Every
            from grsgd.training.saving import ModelFiles
        start_up.passed("imports")

        mpi = launch.world()
        launch.abort_on_error(mpi)
        line.is_shown &= mpi.rank == 0
        with launch.collective_setup(mpi):
            config = load_config(options)
            out = options.out or (default_out(config.algorithm_class.name) if mpi.rank == 0 else None)
            line.loggers = loggers(options, config) if mpi.rank == 0 else []
            resume = Path(options.resume) if options.resume else None
            folder = Path(options.checkpoint) if options.checkpoint else resume
            keeping = Keeping(folder, Every.read(options.every), resume, options.memory, Path(options.memory_folder))
        line.name = config.algorithm_class.name
        with within(config.comm.timeout, "telling all ranks the name of the run file"):
            out = Path(mpi.bcast(out))
        models = ModelFiles(options.save, options.save_best)
        problem = None
        try:
            more = {"keeping": keeping, "spares": options.spares, "timeline": path_or_none(options.timeline)}
            end = run(mpi, config, out, start_up, line, models, **more)
        except SavedElsewhere as error:  # raised on only one rank, which has saved a file in another folder
            problem, end = error, error.end
        reason, remaining, checkpoint, survived = end
        if problem:
            line.clear()
            print_error(problem)
        elif remaining.rank == 0:
            announce(path_of(out, reason), line)
            if checkpoint and how_ended(reason) is Ended.INTERRUPTED:
                print(f"{checkpoint}: --resume {folder} goes on from here", file=sys.stderr, flush=True)
    completed, complete = how_ended(reason) is Ended.COMPLETED, remaining.size == mpi.size
    if completed and not problem and remaining.rank == 0:
        words.leave(words.WHOLE, str(out))
    if survived or not (completed and complete):
        launch.exit_job(remaining, exit_code(reason, checkpoint), complete=complete or survived)
    return 1 if problem else 0


def run(options) -> int:
    """train on several ranks, or run a script on them: grsgd run -n 4 CONFIG.toml, grsgd run -n 4 SCRIPT.py"""
    from grsgd.cli.restarting import Restarting
    from grsgd.job import hosts, start

    trains = start.is_configuration(options.target)
    if trains and options.spares is not None:
        options.arguments += ["--spares", str(options.spares)]
    of_train = None
    if trains:  # parse the options here, so that errors are printed once, before the launcher starts
        of_train = options.make_parser().parse_args(["train", options.target, *options.arguments])
    check_at_least("--restarts", options.restarts, 0)
    first = start.job(options.target, options.arguments, options.ranks, options.launcher, options.spares, options.bind)
    # keep the name of the launcher, so that `srun` is tested only once
    options.launcher = "srun" if first.command[0] == "srun" else "mpiexec"
    ranks = options.ranks if options.ranks is not None else start.tasks_of_allocation()
    found = hosts.read(options.hosts, ranks) if options.hosts else []
    if found and hosts.slots(found) < ranks:
        raise UsageError(f"--hosts {options.hosts}: room for {hosts.slots(found)} ranks, which is less than -n {ranks}")
    job = Restarting(options, of_train, ranks, found)
    if trains:
        config = job.config = load_config(of_train)
        config.check_measured()
        spares = of_train.spares or 0
        check_at_least(f"with --spares {spares}, -n", ranks, spares + 1)
        config.check_ranks(ranks - spares)
        if of_train.resume and not Path(of_train.resume).is_dir():
            raise UsageError(f"--resume {of_train.resume}: no such folder")
    if options.dry_run:
        print(job.command())
        return 0
    return job.run()


def sweep(options) -> int:
    """make the runs of all combinations of values of some keys, except the runs that are finished"""
    from grsgd.cli import sweep as runs
    from grsgd.job.foreign_launchers import check_alone

    check_alone("sweep")
    check_at_least("-n", options.ranks, 1)

    def load(arguments: list[str]):
        words = arguments if options.simulate else ["train", *arguments[3:]]
        return load_config(options.make_parser().parse_args(words))

    return runs.sweep(options, load)


def check(options, ranks: int, simulated=None) -> int:
    """Check a run of `train`, or of `simulate` with the options ``simulated``, and print a description of the run.
    Return the exit code 0. Raises UsageError if the run would fail."""
    options.on_ranks = False  # no job must end after an error in a check, because MPI does not start
    check_at_least("--ranks", ranks, 1)
    config = load_config(options)
    with importing():
        from grsgd.cli.check import check as check_run
    check_run(config, ranks, options.out, simulated)
    return 0


def count_of_ranks() -> str:
    """Return the number of ranks of the job, as text, from the launcher's environment variables, because MPI has not
    started."""
    return next((os.environ[name] for name in SIZE_VARIABLES if os.environ.get(name)), "1")


def ranks() -> str:
    """Return the number of ranks of the job as text, such as "1 rank" or "4 ranks"."""
    count = count_of_ranks()
    return f"{count} rank{'s' if count != '1' else ''}"


def simulate(options) -> int:
    """train in simulated time: any number of ranks, any network, exactly repeatable"""
    if options.check:
        return check(options, options.ranks, options)
    from grsgd.job.signals import EXIT_CODE, as_exceptions

    try:
        with as_exceptions():  # a signal may arrive while torch is imported, which takes seconds
            return simulate_until_interrupted(options)
    except KeyboardInterrupt as interrupt:
        print_error(f"{interrupt} while nothing was simulated: there is no run file")
        return EXIT_CODE


def simulate_until_interrupted(options) -> int:
    """Simulate the run that the command's ``options`` describe, and return the exit code of the command. A signal
    raises KeyboardInterrupt if it arrives before the simulation has results to save, or after the results are saved."""
    with importing():
        from grsgd.comm.communicator import LostRank
        from grsgd.job.rescue import NotSavedThere, path_of
        from grsgd.job.signals import EXIT_CODE
        from grsgd.simulator.driver import Deadlock
        from grsgd.simulator.network import network
        from grsgd.simulator.run import NotEvaluated
        from grsgd.simulator.run import simulate as run
        from grsgd.simulator.tracing.instrumentation import Instrumentation
        from grsgd.training.saving import ModelFiles

    check_at_least("--ranks", options.ranks, options.spares + 1)
    config = load_config(options)
    spec = network(options.network, options.topology)
    out = Path(options.out or default_out(config.algorithm_class.name))
    try:
        with ProgressLine(config.algorithm_class.name) as line:
            line.loggers = loggers(options, config)
            models = ModelFiles(options.save, options.save_best)
            ranks = options.ranks - options.spares
            arguments = config, ranks, spec, out, options.compute, options.timing_only, line, models
            recording = Instrumentation(path_or_none(options.timeline), path_or_none(options.trace))
            reason = run(*arguments, stops_gently=True, spares=options.spares, recording=recording)
            announce(path_of(out, reason), line)
    except NotEvaluated as interrupt:
        print_error(interrupt)
        return EXIT_CODE
    except (Deadlock, LostRank, NotSavedThere) as error:
        print_error(error)
        return 1
    return exit_code(reason)
