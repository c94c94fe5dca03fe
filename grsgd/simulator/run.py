"""Simulation of a training run (`grsgd simulate`), from the configuration to the written run file."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path

from grsgd.config import Config
from grsgd.errors import ConfigError, RunFileError
from grsgd.job.progress_line import ProgressLine
from grsgd.job.rescue import path_of, save_with_models
from grsgd.job.signals import first_asks
from grsgd.runs.ending import INTERRUPTED, Ended, end_attributes, how_ended
from grsgd.runs.metric import columns_of
from grsgd.runs.run_file import check_content, check_writable
from grsgd.simulator.cable_bytes import add_cables
from grsgd.simulator.network import NetworkSpec
from grsgd.simulator.simulation import Simulation
from grsgd.simulator.tracing.instrumentation import NO_INSTRUMENTATION, Instrumentation
from grsgd.training import device as gpu
from grsgd.training.description import expected_bytes
from grsgd.training.record import assemble
from grsgd.training.saving import ModelFiles


class NotEvaluated(KeyboardInterrupt):
    """Error for a signal that has interrupted the evaluation of a simulated run. The error's message says that the run
    file has no accuracies."""


def simulate(
    config: Config,
    ranks: int,
    network: NetworkSpec,
    out: Path,
    compute: str | None = None,
    timing_only: bool = False,
    line: ProgressLine | None = None,
    models: ModelFiles | None = None,
    stops_gently: bool = False,
    spares: int = 0,
    recording: Instrumentation = NO_INSTRUMENTATION,
) -> str:
    """Simulate a training run and write its run file; return the reason why the run ended.

    ``line``: line that shows the progress; None shows nothing. ``models``: the files in which models are saved.
    ``recording``: the requested timeline and trace. ``stops_gently``: whether the first signal of `REASONS` ends the
    training after the present step, with an evaluation. Without ``stops_gently``, or at a second signal, a
    KeyboardInterrupt ends the training without evaluation. A signal during the evaluation raises NotEvaluated.
    """
    line, models = line or ProgressLine(is_shown=False), models or ModelFiles()
    for option in models.asked_for() if timing_only else ():
        raise ConfigError(f"{option} with --timing-only: no gradients are computed, so no model is trained")
    check_writable(out, expected_bytes(config, ranks))
    recording.check(out, spares > 0 or config.faults.are_deadly, network, config.traits.sends_early)
    began, used_before = time.perf_counter(), time.process_time()
    gpu.use_threads()
    line.doing(f"preparing {ranks} rank{'s' if ranks > 1 else ''}")
    simulation = Simulation(config, ranks, network, compute, timing_only, line.update, models, spares, recording)
    models.check(out, simulation.trainers[0].replica.model)
    attributes = simulation.describe()
    check_content(out, attributes | models.places)
    line.training(simulation.trainers[0], simulated=True)
    interrupt = None
    try:
        with first_asks(simulation.stop) if stops_gently else nullcontext():
            stopped = simulation.train()
    except KeyboardInterrupt as error:
        stopped, interrupt = str(error) or INTERRUPTED, error
    attributes |= end_attributes(stopped) | {"virtual_seconds": simulation.seconds()}
    problem = write_recording(recording, attributes, stopped, line)
    records, attributes["lost"] = simulation.records()
    evaluated = ()
    if not timing_only and interrupt is None:
        evaluated, interrupt = evaluate(simulation, out, stopped, line)
    if not evaluated:
        models = saved_without(models, line)
    line.doing("saving")
    attributes["wall_seconds"] = time.perf_counter() - began
    attributes["processor_seconds"] = time.process_time() - used_before
    result = assemble(records, attributes, *evaluated)
    add_cables(result, simulation.network)
    if timing_only:
        for column in ("train_loss", "consensus_distance", *columns_of(result)):
            del result.curve[column]
    save_with_models(out, result, models, simulation.trainers[simulation.left()[0]].replica.model)
    for error in (problem, interrupt if isinstance(interrupt, NotEvaluated) else None):
        if error is not None:
            raise error
    return stopped


def saved_without(models: ModelFiles, line: ProgressLine) -> ModelFiles:
    """Tell the user which of the files ``models`` are not saved, because no snapshot was evaluated. Return a
    `ModelFiles` without files."""
    line.clear()
    for option, path in models.asked_for().items():
        print(f"grsgd: {option} {path}: not saved, because nothing was evaluated", file=sys.stderr, flush=True)
    return ModelFiles()


def evaluate(simulation: Simulation, out: Path, stopped: str, line: ProgressLine) -> tuple[tuple, NotEvaluated | None]:
    """Return the test results of the snapshots and of the final model, with None in place of an error.

    If a signal interrupts the evaluation, return an empty tuple and the `NotEvaluated` error. ``stopped`` is the
    reason why training has ended.
    """
    if how_ended(stopped) is Ended.INTERRUPTED:
        line.clear()
        what = "the result so far is evaluated and saved; Ctrl-C again ends this at once"
        print(f"grsgd: {stopped}: {what}", file=sys.stderr, flush=True)
    try:
        return simulation.evaluate(line), None
    except KeyboardInterrupt as error:
        what = f"{str(error) or INTERRUPTED} while accuracies were computed: they are missing"
        return (), NotEvaluated(f"{path_of(out, stopped)}: {what}")


def write_recording(
    recording: Instrumentation, attributes: dict, reason: str, line: ProgressLine
) -> RunFileError | None:
    """Write the requested files of the timeline and of the trace, and tell the user which parts are missing in them.

    An error is returned instead of raised, because the caller must write the run file before it raises the error.
    """

    def comments() -> list[str]:
        seconds = f"{attributes['virtual_seconds']:.9g} simulated s"
        what = f"{attributes['algorithm']} on {attributes['ranks']} ranks, network: {attributes['network']}"
        return [f"{what}, compute: {attributes['compute']}: {seconds}, ended: {reason}"]

    try:
        missing = recording.write(comments)
    except RunFileError as error:
        return error
    if missing:
        line.clear()
    for one in missing:
        print(f"grsgd: {one}", file=sys.stderr, flush=True)
    return None
