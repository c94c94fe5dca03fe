"""The commands of the command line."""

import os
import secrets
import shlex
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path

from grsgd.comm.watchdog import PASSING_ON_SECONDS, within
from grsgd.errors import ConfigError, RunFileError, UsageError
from grsgd.job.progress_line import ProgressLine
from grsgd.job.startup import StartUp, importing
from grsgd.mpi_environment import rank, say
from grsgd.text import printable

SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Environment variables in which launchers tell a process how many ranks its job has."""

MAX_WARNINGS = 4
"""How many warnings of a run are printed."""


def train(options) -> int:
    """train on all ranks of the job: mpiexec -n 4 python -m grsgd train CONFIG.toml"""
    from grsgd.job.signals import Interruption

    if options.check:
        return check(options, int(count_of_ranks()) if options.ranks is None else options.ranks)
    if options.ranks is not None:
        options.on_ranks = False  # no job has begun
        n = options.ranks
        raise UsageError(f"--ranks {n}: only with --check; `grsgd run -n {n}` starts so many ranks")
    with Interruption(not_yet_training):  # torch takes seconds to import
        return train_on_all_ranks(options)


def not_yet_training(reason: str):
    """A signal has come before MPI has started, or after the run: end this process, in the thread that knows of it."""
    if rank() in (None, "0"):
        say(f"{reason} outside of training")
    time.sleep(PASSING_ON_SECONDS)
    os._exit(130)


def train_on_all_ranks(options) -> int:
    """Train; returns the exit code on the ranks that are left at the end."""
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
            line.loggers = loggers(options) if mpi.rank == 0 else []
            resume = Path(options.resume) if options.resume else None
            folder = Path(options.checkpoint) if options.checkpoint else resume
            keeping = Keeping(folder, Every.read(options.every), resume)
        line.name = config.algorithm_class.name
        with within(config.comm.timeout, "telling all ranks the name of the run file"):
            out = Path(mpi.bcast(out))
        models = ModelFiles(options.save, options.save_best)
        problem = None
        try:
            more = {"keeping": keeping, "spares": options.spares, "timeline": path_or_none(options.timeline)}
            end = run(mpi, config, out, start_up, line, models, **more)
        except SavedElsewhere as error:  # on one rank; the job has ended all the same
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
    from grsgd.job import start, words

    trains = start.is_configuration(options.target)
    out, leaves_file = None, False
    if trains:  # what is wrong is said once, and not by the launcher as well
        of_train = options.make_parser().parse_args(["train", options.target, *options.arguments])
        out, leaves_file = of_train.out, not of_train.check
    job = start.job(options.target, options.arguments, options.ranks, options.launcher)
    if trains:
        config = load_config(of_train)
        config.check_measured()
        processes, spares = options.ranks or start.tasks_of_allocation(), of_train.spares or 0
        check_at_least(f"with --spares {spares}, -n", processes, spares + 1)
        config.check_ranks(processes - spares)
        if of_train.resume and not Path(of_train.resume).is_dir():
            raise UsageError(f"--resume {of_train.resume}: no such folder")
    if options.dry_run:
        print(job)
        return 0
    print(job if options.verbose else job.short(), file=sys.stderr, flush=True)
    with words.asked_for(out) as asked:
        code, line = asked.judged(start.run(job, gently=trains), leaves_file)
    if line:
        print_error(f"run: {line}")
    return code


def sweep(options) -> int:
    """make the runs of all combinations of some values, as far as they are not there"""
    from grsgd.cli import sweep as runs

    check_at_least("-n", options.ranks, 1)

    def load(arguments: list[str]):
        words = arguments if options.simulate else ["train", *arguments[3:]]
        return load_config(options.make_parser().parse_args(words))

    return runs.sweep(options, load)


def check(options, ranks: int, simulated=None) -> int:
    """Check what `train`, or `simulate` with the options ``simulated``, would do, and print it; 0 if it can be done."""
    options.on_ranks = False  # there is no job to end: each process tells what is wrong
    check_at_least("--ranks", ranks, 1)
    config = load_config(options)
    with importing():
        from grsgd.cli.check import check as check_run
    check_run(config, ranks, options.out, simulated)
    return 0


def count_of_ranks() -> str:
    """Return how many ranks the job has, as far as its launcher tells: MPI cannot be asked yet."""
    return next((os.environ[name] for name in SIZE_VARIABLES if os.environ.get(name)), "1")


def ranks() -> str:
    """Say how many ranks the job has."""
    count = count_of_ranks()
    return f"{count} rank{'s' if count != '1' else ''}"


def simulate(options) -> int:
    """train in simulated time: any number of ranks, any network, exactly repeatable"""
    if options.check:
        return check(options, options.ranks, options)
    from grsgd.job.signals import EXIT_CODE, as_exceptions

    try:
        with as_exceptions():  # torch takes seconds to import
            return simulate_until_interrupted(options)
    except KeyboardInterrupt as interrupt:
        print_error(f"{interrupt} while nothing was simulated: there is no run file")
        return EXIT_CODE


def simulate_until_interrupted(options) -> int:
    """Simulate; returns the exit code. Raises KeyboardInterrupt before there is anything to save, and after."""
    with importing():
        from grsgd.comm.communicator import LostRank
        from grsgd.job.rescue import NotSavedThere, path_of
        from grsgd.job.signals import EXIT_CODE
        from grsgd.simulate.driver import Deadlock
        from grsgd.simulate.network import network
        from grsgd.simulate.run import NotEvaluated
        from grsgd.simulate.run import simulate as run
        from grsgd.simulate.tracing.instrumentation import Instrumentation
        from grsgd.training.saving import ModelFiles

    check_at_least("--ranks", options.ranks, options.spares + 1)
    config = load_config(options)
    spec = network(options.network, options.topology)
    out = Path(options.out or default_out(config.algorithm_class.name))
    try:
        with ProgressLine(config.algorithm_class.name) as line:
            line.loggers = loggers(options)
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


def replay(options) -> int:
    """replay a schedule in GOAL, as simulate --trace writes it, on a simulated network"""
    from tabulate import tabulate

    with importing():
        from grsgd.simulate.driver import Deadlock
        from grsgd.simulate.network import network
        from grsgd.simulate.tracing import goal
        from grsgd.simulate.tracing.replay import replay as replayed
        from grsgd.simulate.tracing.replay import rows

    spec, ranks = network(options.network, options.topology), goal.read(options.file)
    try:
        found = replayed(ranks, spec)
    except Deadlock as error:
        print_error(error)
        return 1
    print(tabulate(rows(ranks, found), tablefmt="plain", disable_numparse=True))
    return 0


def exit_code(reason: str, checkpoint: Path | None = None) -> int:
    """Return the exit code of a run that ended for this reason, after this checkpoint."""
    from grsgd.job.signals import CHECKPOINTED, EXIT_CODE
    from grsgd.runs.ending import Ended, how_ended

    interrupted = CHECKPOINTED if checkpoint else EXIT_CODE
    return {Ended.COMPLETED: 0, Ended.INTERRUPTED: interrupted}.get(how_ended(reason), 1)


def evaluate(options) -> int:
    """test a saved model: its task's metric and loss on the test data of its configuration"""
    with importing():
        from grsgd.job.signals import EXIT_CODE, as_exceptions
        from grsgd.training.loading import evaluate as evaluated

    try:
        with as_exceptions():
            found = evaluated(options.model, options.config, overrides(options), options.best, options.trust)
    except KeyboardInterrupt as interrupt:
        print_error(f"{interrupt} before all samples were tested")
        return EXIT_CODE
    if found.source.warning:
        print(f"warning: {found.source.warning}", file=sys.stderr, flush=True)
    data = found.source.config.data.name
    print(
        f"{found.metric.title} {found.metric.text(found.value)}, test loss {found.loss:.4f}, "
        f"{found.samples} samples of {data}: {found.source.path}"
    )
    return 0


def calibrate(options) -> int:
    """measure computing, latency and bandwidth here, for simulate --network; alone or under mpiexec"""
    with importing():
        from grsgd.job import launch
        from grsgd.runs.run_file import check_writable
        from grsgd.simulate.calibration import calibrate as calibration
        from grsgd.simulate.calibration import network_file

    mpi = launch.world()
    launch.abort_on_error(mpi)
    try:
        with launch.collective_setup(mpi):
            check_at_least("--steps", options.steps, 2)
            config = load_config(options)
            if mpi.rank == 0:
                check_writable(options.out)
        measured = calibration.calibrate(mpi, config, options.steps)
    except KeyboardInterrupt:
        os._exit(130)
    if mpi.rank == 0:
        command = ["grsgd", "calibrate", options.config]
        for setting in options.set:
            command += ["--set", setting]
        command += ["--data-dir", options.data_dir] if options.data_dir else []
        command += ["--steps", str(options.steps), "--out", options.out]
        network_file.write(Path(options.out), network_file.network_file(measured, config, shlex.join(command)))
        print(network_file.table(measured), options.out, sep="\n", flush=True)
    return 0


def path_or_none(text: str | None) -> Path | None:
    """Return the file that an option names, if it is given."""
    return None if text is None else Path(text)


def check_at_least(option: str, value: int, least: int):
    """Raise ConfigError for a number that is too small."""
    if value < least:
        raise ConfigError(f"{option} {value}: must be {least} or more")


def load_config(options):
    """Return the configuration with its overrides; raises ConfigError."""
    from grsgd import config

    return config.load(options.config, overrides(options))


def overrides(options) -> list[str]:
    """Return the settings that replace those of the configuration."""
    return [*options.set, *([f"data.dir={options.data_dir!r}"] if options.data_dir else [])]


def loggers(options) -> list:
    """Return what takes the numbers of a run while it goes on; raises ConfigError, RunFileError."""
    from grsgd.runs.loggers import CsvLogger, TensorBoardLogger

    csv = [CsvLogger(options.csv)] if options.csv else []
    return csv + ([TensorBoardLogger(options.tensorboard)] if options.tensorboard else [])


def announce(out: Path, line: ProgressLine):
    """Say where the run file is, and after ``": "`` what the run has come to or that it ended early; before, what it
    warns of and what it chose by itself. The loggers of ``line`` get the curve."""
    from grsgd.runs.ending import Ended
    from grsgd.runs.loggers import log_curve
    from grsgd.runs.result_line import result_line
    from grsgd.runs.run_file import load_run

    run = load_run(out)
    log_curve(run, line)
    line.clear()
    attributes = run.attributes
    for reason in ("transport", "redundancy"):
        if reason in attributes:
            print(attributes[reason], file=sys.stderr, flush=True)
    warnings = attributes.get("warnings", [])
    for warning in warnings[:MAX_WARNINGS]:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    if len(warnings) > MAX_WARNINGS:
        print(f"warning: {len(warnings) - MAX_WARNINGS} more in {out}", file=sys.stderr, flush=True)

    for name, what in (("model_file", "final model"), ("best_model_file", "best model")):
        if name in attributes:
            print(f"{what}: {attributes[name]}", file=sys.stderr, flush=True)
    if attributes["ended"] == Ended.COMPLETED:
        print(f"{out}: {result_line(run)}", flush=True)
    else:
        print(f"{out}: stopped early: {attributes['reason']}: {result_line(run)}", file=sys.stderr, flush=True)


def default_out(algorithm: str) -> str:
    """Return a name that no other run has; raises RunFileError."""
    try:
        Path("results").mkdir(exist_ok=True)
    except OSError as error:
        raise RunFileError(f"results: {error.strerror}: name another file with --out") from None
    return f"results/{algorithm}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.h5"


def report(options) -> int:
    """print a table of runs: as wide as a terminal, or in Markdown, CSV, JSON or LaTeX"""
    from grsgd.runs.report import WIDTH
    from grsgd.runs.report import report as table

    at_terminal, skipped = sys.stdout.isatty(), SkippedFiles()
    form = options.format or ("text" if at_terminal else "md")
    width = shutil.get_terminal_size((WIDTH, 0)).columns if form == "text" else WIDTH
    columns = in_list(options.columns or "") or None
    print(table(options.files, options.group, form, columns, options.all, width, skipped))
    return skipped.exit_code


def plot(options) -> int:
    """draw runs: their curves over time and samples, bytes sent, where the time went"""
    os.environ.pop("MPLBACKEND", None)  # for windows; there are none here, and an unknown one would be an error
    from grsgd.runs.plot import plot as draw

    skipped = SkippedFiles()
    look = {"panels": in_list(options.panels), "labels": in_list(options.labels), "title": options.title}
    draw(options.files, options.out, skipped, **look, size=options.size)
    print(options.out)
    return skipped.exit_code


def in_list(words: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in words.split(",")] if words else []


class SkippedFiles:
    """Files of runs that could not be read: named on stderr, and an exit code of 1."""

    exit_code = 0

    def __call__(self, error: RunFileError):
        print_error(error)
        self.exit_code = 1


def coding_cost(options) -> int:
    """print what CSSGD and other schemes send, for every redundancy, counted in two ways"""
    from coding.cost_table import cost_table

    check_at_least("--ranks", options.ranks, 1)
    print(cost_table(options.ranks))
    return 0


def topology(options) -> int:
    """print how many neighbours a topology has, and how fast models come together on it"""
    from tabulate import tabulate

    from grsgd.comm.topologies.consensus import is_doubly_stochastic, most_neighbours, spectral_gap, steps_to_consensus
    from grsgd.comm.topologies.topology import TOPOLOGIES, TopologyError, build

    check_at_least("--ranks", options.ranks, 1)
    rows = []
    for name in options.names or TOPOLOGIES:
        try:
            found = build(name, options.ranks)
        except TopologyError as error:
            if options.names:
                raise
            rows.append((name, "", "", str(error)))
            continue
        row = [name, most_neighbours(found), len(found.matrices)]
        if not is_doubly_stochastic(found):
            rows.append((*row, "rows and columns do not all sum to 1"))
            continue
        steps = steps_to_consensus(found, 0.01), steps_to_consensus(found)
        rows.append((*row, f"{spectral_gap(found):.3g}", *("never" if one is None else one for one in steps)))
    headers = ("topology", "sends to", "graphs", "spectral gap", "steps to 1 %", "steps to the mean")
    print(tabulate(rows, headers=headers, tablefmt="pipe"))
    return 0


def bound(options) -> int:
    """print the least time in which the workers of a parameter server can make an update"""
    from tabulate import tabulate

    with importing():
        from grsgd.simulate.bound import bound as times

    check_at_least("--ranks", options.ranks, 1)
    if options.gradients is not None:
        check_at_least("--gradients", options.gradients, 1)
    rows = times(load_config(options), options.ranks, options.compute, options.step_seconds, options.gradients)
    print(tabulate(rows, tablefmt="plain", disable_numparse=True))
    return 0


def data(options) -> int:
    """list the data sets, or fetch some"""
    from tabulate import tabulate

    from grsgd.data import NAMES, status
    from grsgd.data.fetch import fetch

    if options.action == "list":
        rows = status(options.data_dir)
        print(tabulate(rows, headers=rows[0]._fields, tablefmt="pipe"))
        return 0
    unknown = next((name for name in options.names if name not in NAMES), None)
    if unknown or not options.names:
        raise UsageError(f"data fetch: {unknown or 'no data set named'}: allowed: {', '.join(NAMES)}")
    for name in options.names:
        print(fetch(name, options.data_dir))
    return 0


def print_error(error):
    """Print what went wrong, in one line."""
    print(f"grsgd: error: {printable(str(error))}", file=sys.stderr, flush=True)
