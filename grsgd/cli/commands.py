"""Commands of ``grsgd`` that train no model, such as ``report``, ``plot``, ``evaluate``, ``replay`` and
``calibrate``."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from grsgd.cli.arguments import check_at_least, in_list, load_config, overrides
from grsgd.cli.outcome import SkippedFiles, print_error
from grsgd.errors import UsageError
from grsgd.job.startup import importing


def replay(options) -> int:
    """replay a schedule in GOAL format, as simulate --trace writes it, on a simulated network"""
    from tabulate import tabulate

    with importing():
        from grsgd.simulator.driver import Deadlock
        from grsgd.simulator.network import network
        from grsgd.simulator.tracing import goal
        from grsgd.simulator.tracing.replay import replay as replayed
        from grsgd.simulator.tracing.replay import rows

    spec, ranks = network(options.network, options.topology), goal.read(options.file)
    try:
        found = replayed(ranks, spec)
    except Deadlock as error:
        print_error(error)
        return 1
    print(tabulate(rows(ranks, found), tablefmt="plain", disable_numparse=True))
    return 0


def evaluate(options) -> int:
    """test a saved model: the task's metric and the loss, on the test data of its configuration"""
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
    """measure computing, latency and bandwidth on this machine, alone or under mpiexec, for simulate --network"""
    with importing():
        from grsgd.job import launch
        from grsgd.runs.run_file import check_writable
        from grsgd.simulator.calibration import calibrate as calibration
        from grsgd.simulator.calibration import network_file

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


def report(options) -> int:
    """print a table of runs: as wide as the terminal, or in Markdown, CSV, JSON or LaTeX"""
    from grsgd.runs.report import WIDTH
    from grsgd.runs.report import report as table

    at_terminal, skipped = sys.stdout.isatty(), SkippedFiles()
    form = options.format or ("text" if at_terminal else "md")
    width = shutil.get_terminal_size((WIDTH, 0)).columns if form == "text" else WIDTH
    columns = in_list(options.columns or "") or None
    print(table(options.files, options.group, form, columns, options.all, width, skipped))
    return skipped.exit_code


def plot(options) -> int:
    """draw runs: curves over time and samples, bytes sent, and the parts of the time"""
    # a figure in a file needs no backend of matplotlib, and an unknown backend would be an error
    os.environ.pop("MPLBACKEND", None)
    from grsgd.runs.plot import plot as draw

    skipped = SkippedFiles()
    look = {"panels": in_list(options.panels), "labels": in_list(options.labels), "title": options.title}
    draw(options.files, options.out, skipped, **look, size=options.size)
    print(options.out)
    return skipped.exit_code


def coding_cost(options) -> int:
    """print the bytes that CSSGD and other schemes send for every redundancy; multicasts are counted in two ways"""
    from coding.cost_table import cost_table

    check_at_least("--ranks", options.ranks, 1)
    print(cost_table(options.ranks))
    return 0


def topology(options) -> int:
    """print a rank's number of neighbours on a topology, and the steps of mixing until the ranks' models agree"""
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
        from grsgd.simulator.bound import bound as times

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
