"""Goodput of trainings in which processes die again and again.

Goodput is the number of steps in the final model, relative to the final model of a training without deaths.

    python -m experiments.survival.goodput --kills 250 --out FOLDER      # in real time, 8 ranks
    python -m experiments.survival.goodput --simulated --ranks 1000 --out FOLDER

On average once in 5.5 steps or once in 1.2 steps, the process of a random rank gets SIGKILL, at a random moment. Spare
processes take over the ranks of dead processes. Goodput is (steps in the final model) / (steps in the final model of
an equally long training without deaths). The steps in a final model are counted by `experiments.survival.counted`. For
algorithms whose ranks all step together, samples are counted instead of steps. With the options ``--kills-per-hour 125
--back 57``, 125 processes die per hour, and each of them is back as a spare process after 57 seconds.

In real time, the goodput of a ring all-reduce with restarts is measured for comparison. Every death ends the job of
the ring all-reduce, which is restarted from its last checkpoint. The goodput of the ring all-reduce with restarts
counts the steps up to its last checkpoint.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from experiments.arguments import parse_once
from grsgd import load_run
from grsgd.mpi_environment import find_mpiexec, job_environment
from grsgd.training.description import commit

ALGORITHMS = {
    "grsgd": {},
    "gossip": {"topology": "ring"},
    "ring_allreduce": {},
    "dpsgd": {},
    "lasgd": {},
    "diloco": {},
}
BY_SAMPLES = "ring_allreduce", "diloco"
"""Algorithms whose steps are computed from the number of samples, because all their ranks step together."""
BY_DEFAULT = ["grsgd", "gossip", "ring_allreduce"]
"""Algorithms that are run if the command line names none."""
STEPS_PER_KILL = (5.5, 1.2)
"""Mean numbers of steps of a rank from one death of a process to the next."""
STEP_SECONDS = 0.5
"""Seconds of a step.

A step is longer than the time in which a death is noticed, so that 8 ranks do not keep two cores busy.
"""
RUN_KILLS = 30
"""Default of the mean number of deaths in a job.

Each death needs a spare process, whose start takes a core a second.
"""
CALM_RUNS = 3
"""Number of runs without deaths with which the runs with deaths are compared."""
HANGS_SECONDS = 600.0
"""Seconds after which a run that has not ended counts as hung."""
RATE, BATCH = 1.0, 128


def config_of(
    algorithm: str,
    options: dict,
    ranks: int,
    seconds: float,
    every: float | None,
    seed: int,
    back: float | None = None,
) -> str:
    """Return the configuration of a run as TOML text.

    A step of each rank is a pause with a little computing.
    """
    lines = [f"seed = {seed}", "[algorithm]", f'name = "{algorithm}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    lines += ["[model]", 'name = "counted"', f"rate = {RATE}", "[data]", 'name = "digits"', f"batch_size = {BATCH}"]
    lines += ["[optimizer]", f"lr = {RATE}", "[train]", f"seconds = {seconds}", "snapshots = 4"]
    lines += ["[comm]", "timeout = 60.0"]
    lines += ["[faults]", f"every = {every}"] if every else []
    lines += [f"back_seconds = {back}"] if every and back else []
    lines += ["[stragglers.pause]", *(f"{rank} = {{ every = 1, seconds = {STEP_SECONDS} }}" for rank in range(ranks))]
    return "\n".join(lines) + "\n"


def spares_for(deaths: float) -> int:
    """Return a number of spare processes that suffices in 999 of 1000 runs with ``deaths`` deaths on average."""
    return math.ceil(deaths + 3.1 * math.sqrt(deaths)) + 1


def run(folder: Path, name: str, text: str, ranks: int, spares: int, simulated: bool) -> dict:
    """Make one run; return its results as a dict: deaths, steps, accuracy, participation, longest wait, and seconds."""
    path, out, model = (folder / f"{name}{suffix}" for suffix in (".toml", ".h5", ".pt"))
    path.write_text(text)
    program = [sys.executable, "-m", "experiments.survival.counted"]
    count = ranks + spares
    if simulated:
        command = [*program, "simulate", path, "--ranks", count, "--compute", "lognormal:0.01,0.3"]
    else:
        tolerant = ["--with-ft", "ulfm"] if spares else []
        command = [find_mpiexec(), *tolerant, "-n", count, *program, "train", path]
    command += ["--out", out, "--save", model, *(["--spares", spares] if spares else [])]
    began = time.monotonic()
    try:
        done = subprocess.run(
            [str(word) for word in command],
            env=job_environment(),
            capture_output=True,
            text=True,
            timeout=None if simulated else HANGS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "hung": True}
    if done.returncode or not model.exists():
        (folder / f"{name}.log").write_text(done.stdout + done.stderr)
        return {"name": name, "failed": f"exit code {done.returncode}: {name}.log"}
    found = load_run(out)
    steps = ranks * float(torch.load(model, weights_only=True)["steps"])
    if found.attributes["algorithm"] in BY_SAMPLES:
        steps = int(found.curve["samples"][-1]) / BATCH
    waits = found.extra.get("longest_wait", np.zeros(1))
    return {
        "name": name,
        "deaths": int(found.extra["death_rank"].size) if "death_rank" in found.extra else 0,
        "steps": steps,
        "accuracy": found.attributes["final_test_accuracy"],
        "participation": found.attributes["participation"],
        "longest_wait": float(np.nanmax(waits)),
        "lost": len(found.attributes.get("lost") or []),
        "seconds": round(time.monotonic() - began, 1),
    }


def restarted(folder: Path, ranks: int, seconds: float, every: float, seed: int) -> dict:
    """Train by a ring all-reduce for ``seconds``, and restart from the last checkpoint after each death.

    While a job starts, no process is killed. Returns the number of deaths, and the number of steps of all ranks up to
    the last checkpoint.
    """
    random = np.random.default_rng(seed)
    kept, out = folder / "kept", folder / "ring.h5"
    shutil.rmtree(kept, ignore_errors=True)
    path = folder / "ring.toml"
    path.write_text(config_of("ring_allreduce", {}, ranks, 1e6, None, seed).replace("snapshots = 4", "snapshots = 1"))
    deaths, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        before = samples_in(kept)
        command = [find_mpiexec(), "-n", ranks, sys.executable, "-m", "experiments.survival.counted", "train", path]
        command += ["--out", out, "--every", "1", "--resume" if before else "--checkpoint", kept]
        job = subprocess.Popen(
            [str(word) for word in command], env=job_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while samples_in(kept) == before and job.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(max(min(random.exponential(every), end - time.monotonic()), 0))
        job.kill()
        job.wait()
        deaths += 1
    return {"deaths": deaths, "steps": samples_in(kept) / BATCH}


def samples_in(folder: Path) -> int:
    """Return the number of samples on which all ranks together had trained at the last checkpoint in ``folder``."""
    return max((int(each.name.split("-")[1]) for each in folder.glob("samples-*")), default=0)


def reference(folder: Path, ranks: int, per_kill: float, kills: int) -> str:
    """Return the row of the Markdown table for the ring all-reduce with restarts, in real time."""
    every = per_kill * STEP_SECONDS
    seconds = kills * every
    calm = run(folder, "ring-calm", config_of("ring_allreduce", {}, ranks, seconds, None, 0), ranks, 0, False)
    found = restarted(folder, ranks, seconds, every, seed=0)
    goodput = found["steps"] / calm["steps"]
    return f"| ring_allreduce, restarted | {ranks} | {per_kill:g} | {found['deaths']} | 0 | {goodput:.1%} | | | |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=250, help="kills per algorithm and rate (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks that train (default: %(default)s)")
    parser.add_argument("--simulated", action="store_true", help="run in simulated time")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=BY_DEFAULT)
    parser.add_argument(
        "--steps-per-kill", nargs="+", type=float, default=STEPS_PER_KILL, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--kills-per-hour", nargs="+", type=float, default=(), metavar="N", help="in place of --steps-per-kill"
    )
    parser.add_argument(
        "--back",
        type=float,
        metavar="SECONDS",
        help="time from a death until the process is back as a spare (default: spares are ready from the start)",
    )
    parser.add_argument("--run-kills", type=int, default=RUN_KILLS, help="kills per job (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first job")
    parser.add_argument("--out", type=Path, default=Path("results/goodput"), metavar="FOLDER")
    options = parse_once(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    rates = [3600 / kills / STEP_SECONDS for kills in options.kills_per_hour] or options.steps_per_kill
    rows = []
    for algorithm in options.algorithms:
        for per_kill in rates:
            every = per_kill * STEP_SECONDS
            seconds = options.run_kills * every
            runs = math.ceil(options.kills / options.run_kills)
            seeds = range(options.first_seed, options.first_seed + runs)
            print(f"{algorithm}, a kill every {per_kill:g} steps: {runs} runs of {seconds:.0f} s", flush=True)
            common = algorithm, ALGORITHMS[algorithm], options.ranks, seconds
            label = f"{algorithm}-{options.ranks}-{per_kill:g}" + ("-simulated" if options.simulated else "")
            label += f"-{options.run_kills}-from-{options.first_seed}"
            calm = []
            for seed in seeds[:CALM_RUNS]:
                text = config_of(*common, None, seed)
                calm.append(run(options.out, f"{label}-calm-{seed}", text, options.ranks, 0, options.simulated))
            found = []
            for seed in seeds:
                text = config_of(*common, every, seed, options.back)
                spares = spares_for(options.run_kills)
                found.append(run(options.out, f"{label}-{seed}", text, options.ranks, spares, options.simulated))
                print(f"  {found[-1]}", flush=True)
            rows.append(row(algorithm, per_kill, options.ranks, calm, found))
            about = {"algorithm": algorithm, "ranks": options.ranks, "kills_per_hour": round(3600 / every, 3)}
            about |= {"commit": str(commit()), "calm": calm, "runs": found}
            (options.out / f"{label}.json").write_text(json.dumps(about, indent=1))
            (options.out / "runs.csv").write_text(table_of_runs(options.out))
            print(rows[-1], flush=True)
    if not options.simulated and "ring_allreduce" in options.algorithms:
        common = options.out, options.ranks
        rows += [reference(*common, per_kill, options.run_kills) for per_kill in rates]
    print("\n".join([HEAD, *rows]))


COLUMNS = ("algorithm", "ranks", "kills_per_hour", "seed", "is_calm")
MEASURED = ("deaths", "steps", "accuracy", "participation", "longest_wait", "lost", "seconds")


def table_of_runs(folder: Path) -> str:
    """Return a CSV table of all runs whose JSON files are in ``folder``.

    Runs that failed have no measurements.
    """
    lines = [",".join((*COLUMNS, *MEASURED, "commit"))]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        for kind in ("calm", "runs"):
            for each in found[kind]:
                key = *(found[name] for name in COLUMNS[:3]), each["name"].rpartition("-")[2], int(kind == "calm")
                lines.append(",".join(map(str, (*key, *(each.get(name, "") for name in MEASURED), found["commit"]))))
    return "\n".join(lines) + "\n"


HEAD = (
    "| algorithm | ranks | steps per kill | kills | hung or failed | goodput, mean (lowest) | accuracy, undisturbed | "
    "participation | longest wait in a step |\n|---|---|---|---|---|---|---|---|---|"
)


def row(algorithm: str, per_kill: float, ranks: int, calm: list[dict], runs: list[dict]) -> str:
    """Return the row of the Markdown table for one algorithm and one mean number of steps per death."""
    whole = [each for each in runs if "steps" in each]
    undisturbed_steps = np.mean([each["steps"] for each in calm])
    goodput = [each["steps"] / undisturbed_steps for each in whole]
    accuracy, undisturbed = (np.mean([each["accuracy"] for each in them]) for them in (whole, calm))
    part = np.mean([each["participation"] for each in whole])
    deaths, failed = sum(each["deaths"] for each in whole), len(runs) - len(whole)
    return (
        f"| {algorithm} | {ranks} | {per_kill:g} | {deaths} | {failed} | "
        f"{np.mean(goodput):.1%} ({min(goodput):.1%}) | {accuracy:.1%}, {undisturbed:.1%} | {part:.1%} | "
        f"{1e3 * max(each['longest_wait'] for each in whole):.0f} ms |"
    )


if __name__ == "__main__":
    main()
