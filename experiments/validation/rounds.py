"""Makes runs on a testbed, round by round, with the measurements around each run, and simulates the same runs."""

import json
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from experiments.runner import code
from experiments.runner.batch import Calibration, Computing, MpiHost, Training, Work, make_each
from experiments.runner.hosts import describe_machine
from experiments.runner.parallel import Unfinished
from experiments.runner.run_spec import MEASURED, Link, RunSpec
from experiments.validation.errors import Times
from experiments.validation.settings import EmulatedCluster
from experiments.validation.variant import BASE, Variant
from grsgd.runs.finished import finished_run
from grsgd.runs.measures import seconds_per_step, waiting_share
from grsgd.runs.run_file import load_run
from grsgd.simulator.calibration.calibrate import StepTimes
from grsgd.simulator.calibration.network_file import differs, typical
from grsgd.simulator.network import ComputeSpec, NetworkSpec, network
from grsgd.simulator.run import simulate

SECONDS = 22.0
"""Approximate seconds of a run together with the measurements around it."""
COMPUTING_STEPS, CALIBRATION_STEPS, WORK_STEPS = 30, 60, 20
"""Numbers of steps to measure the computing time, to calibrate, and to measure an algorithm's work."""
TIMEOUT = 180
"""Seconds after which a run or measurement that has not ended counts as hung."""


def folder_of(out: Path, setting: EmulatedCluster, number: int) -> Path:
    return out / setting.name / str(number)


def file_of(folder: Path, setting: EmulatedCluster, variant: Variant) -> Path:
    """Return the path of the run file of a variant, in ``folder``, which has the files of one round."""
    measured_by = f"{COMPUTING_STEPS} and {CALIBRATION_STEPS} steps of measurements"
    hosts = f"{replace(setting, name='', what='')}, {setting.cores():g} cores each, of {describe_machine()}"
    spec = RunSpec("validation/base", tuple(variant.overrides()), setting.hosts, MEASURED, Link(setting.rate))
    return folder / f"{variant.name}-{spec.name(f'{hosts}, {measured_by}', code.digest_code())}.h5"


def computing_files(folder: Path, variant: Variant) -> tuple[Path, Path]:
    """Return the paths of the files with the computing times that were measured before and after a variant's run."""
    return folder / f"{variant.name}-before.json", folder / f"{variant.name}-after.json"


def work_file(folder: Path, variant: Variant) -> Path:
    """Return the path of the file with the measured work of a variant's algorithm.

    The work is the part of a step's seconds that exceeds the computation of the gradient.
    """
    return folder / f"{variant.name}-work.json"


def files_of(folder: Path, variant: Variant) -> tuple[Path, ...]:
    """Return the paths of the files of all measurements that the simulation of a variant's run needs."""
    return network_file(folder, variant), *computing_files(folder, variant), work_file(folder, variant)


def list_missing(out: Path, setting: EmulatedCluster, number: int, variants: list[Variant]) -> list[Variant]:
    """Return the variants that have not been run and measured in the round with this number."""
    folder = folder_of(out, setting, number)
    return [variant for variant in variants if not is_measured(folder, setting, variant)]


def is_measured(folder: Path, setting: EmulatedCluster, variant: Variant) -> bool:
    if not all(file.exists() for file in files_of(folder, variant)):
        return False
    return finished_run(file_of(folder, setting, variant)) is not None


def network_file(folder: Path, variant: Variant) -> Path:
    """Return the path of the copy of the round's calibration that belongs to a variant's run."""
    return folder / f"{variant.name}.toml"


def measure(out: Path, setting: EmulatedCluster, variants: list[Variant], rounds: int, bar: tqdm):
    """Make the missing runs of a setting in all rounds, one MPI job per round. Raises TestbedError and Unfinished."""
    todo = {folder_of(out, setting, number): list_missing(out, setting, number, variants) for number in range(rounds)}
    todo = {folder: those for folder, those in todo.items() if those}
    if not todo:
        return
    with setting.testbed() as testbed:
        host = MpiHost(testbed.mpiexec, testbed.without_cpu_limit)
        for folder, those in todo.items():
            folder.mkdir(parents=True, exist_ok=True)
            for variant in those:  # files of an interrupted attempt, which do not belong to the new run
                for file in files_of(folder, variant):
                    file.unlink(missing_ok=True)
            calibrated = folder / "network.toml"
            runs = [Calibration(str(BASE), [], str(calibrated), steps=CALIBRATION_STEPS)]
            for variant in those:
                before, after = computing_files(folder, variant)
                training = Training(str(BASE), variant.overrides(), str(file_of(folder, setting, variant)))
                work = Work(str(BASE), variant.overrides(), str(work_file(folder, variant)), WORK_STEPS)
                runs += [work, Computing(str(BASE), [], str(before), COMPUTING_STEPS), training]
            runs.append(Computing(str(BASE), [], str(after), COMPUTING_STEPS))
            previous = None
            for one, error in make_each(host, setting.hosts, runs, TIMEOUT):
                if error:
                    raise Unfinished(error)
                if isinstance(one, Computing) and previous is not None:
                    computing_files(folder, previous)[1].write_text(Path(one.out).read_text())
                if isinstance(one, Training):
                    previous = next(variant for variant in those if str(file_of(folder, setting, variant)) == one.out)
                    network_file(folder, previous).write_text(calibrated.read_text())
                    bar.update()


def times(out: Path, setting: EmulatedCluster, variant: Variant, rounds: int) -> list[tuple[Times, Times]]:
    """Simulate a variant's run of each round; return the measured and the simulated times of each round."""
    found = []
    for number in range(rounds):
        folder = folder_of(out, setting, number)
        simulated = folder / f"{variant.name}-simulated.h5"
        loaded, timing_only = variant.load(), not variant.load().traits.depends_on_values
        simulate(loaded, setting.hosts, network_of(folder, variant), simulated, timing_only=timing_only)
        found.append(tuple(times_of(file) for file in (file_of(folder, setting, variant), simulated)))
    return found


def network_of(folder: Path, variant: Variant) -> NetworkSpec:
    """Return the simulated network for a variant's run.

    The simulated network is the calibrated one, with the algorithm's work and the computing times measured around the
    run. As in a calibration, a rank has a factor of its own only if its computing time differs from other ranks' by
    more than noise.
    """
    spec = network(str(network_file(folder, variant)))
    both = [json.loads(file.read_text()) for file in computing_files(folder, variant)]
    ranks = [StepTimes(**typical([StepTimes(*times) for times in of_rank])) for of_rank in zip(*both, strict=True)]
    of_all = typical(ranks)
    factors = {rank: times.median / of_all["median"] for rank, times in enumerate(ranks)}
    slowdown = {rank: factor for rank, factor in factors.items() if differs(factor, 1.0)}
    work = json.loads(work_file(folder, variant).read_text())
    compute = ComputeSpec(**of_all, work=work or 0.0, slowdown=slowdown)
    return spec.model_copy(update={"compute": compute})


def times_of(file: Path) -> Times:
    run = load_run(file)
    return Times(seconds_per_step(run), waiting_share(run))
