"""Parser of all commands of ``grsgd`` and their options, made with argparse."""

import argparse

from grsgd import __version__
from grsgd.cli import commands, completion, demo, doctor, examples, reference, run_options, sweep_options, training
from grsgd.errors import UsageError, did_you_mean

NUMBERS_OF_RANKS = ("--nproc-per-node", "--nproc_per_node", "--num-processes", "--num_processes", "--np", "--nproc")
"""Names that other launchers give to the option for the number of ranks."""
DESCRIPTION = "Decentralised, asynchronous and coded distributed SGD over MPI."


class Help(argparse.HelpFormatter):
    """Formatter of help texts that keeps the line breaks in the text below the options."""

    def _fill_text(self, text, width, indent):
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return text


class Parser(argparse.ArgumentParser):
    """Parser that refuses unknown options by a UsageError, with a hint at the most similar option of the command."""

    def parse_args(self, args=None, namespace=None):
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0], args)}")
        return options

    def _hint(self, unknown: str, arguments: list[str]) -> str:
        """Return a hint at the option that is most similar to the word ``unknown``; "" if no option is similar."""
        name = unknown.partition("=")[0]
        if name in NUMBERS_OF_RANKS:
            simulates = arguments[0] == "simulate"
            return " (did you mean --ranks?)" if simulates else " (the number of ranks: grsgd run -n RANKS)"
        commands = next(action.choices for action in self._actions if action.choices)
        known = commands.get(arguments[0], self)._actions
        return did_you_mean(name, [word for action in known for word in action.option_strings])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Parsed options have three further attributes: ``command``, ``on_ranks`` and
    ``make_parser``. The attribute ``command`` of parsed options is the function that runs the command. ``on_ranks``
    says whether all ranks of a job call this function. By the attribute ``make_parser``, commands can call the function
    `make_parser`."""
    top = Parser(prog="grsgd", description=DESCRIPTION, epilog=examples.TOP, formatter_class=Help)
    top.add_argument("--version", action="version", version=__version__)
    top.set_defaults(command=None, make_parser=make_parser)
    add = top.add_subparsers(metavar="COMMAND")
    for add_command in (add_demo, add_train, add_run, add_simulate, add_replay, add_evaluate, add_calibrate):
        add_command(add)
    for add_command in (add_sweep, add_report, add_plot):
        add_command(add)
    for add_command in (add_config, add_algorithms, add_models, add_data, add_topology, add_bound, add_coding_cost):
        add_command(add)
    for add_command in (add_testbed, add_doctor, add_completion):
        add_command(add)
    return top


def command(add, function, on_ranks: bool = False) -> argparse.ArgumentParser:
    """Add a command that ``function`` runs, and return the command's parser. The help of the command is the first line
    of the function's docstring, followed by the command's text in `examples`."""
    name = function.__name__.replace("_", "-")
    # use the command's name, because python -OO leaves out docstrings
    what = (function.__doc__ or name).splitlines()[0]
    more = examples.COMMANDS.get(name)
    sub = add.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=more, formatter_class=Help
    )
    sub.set_defaults(command=function, on_ranks=on_ranks)
    return sub


def configured(add, function, on_ranks: bool = False) -> argparse.ArgumentParser:
    """Add a command that reads a configuration, with the options ``--set`` and ``--data-dir``. Return the command's
    parser."""
    sub = command(add, function, on_ranks)
    sub.add_argument("config", metavar="CONFIG.toml", help="configuration of the run")
    add_overrides(sub)
    return sub


def add_overrides(sub):
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the configuration, such as optimizer.lr=0.05; may be repeated",
    )
    sub.add_argument("--data-dir", metavar="DIR", help="folder with the data sets; same as --set data.dir=DIR")


def add_demo(add):
    sub = command(add, demo.demo)
    sub.add_argument(
        "-n", dest="ranks", type=int, default=4, metavar="RANKS", help="number of ranks (default: %(default)s)"
    )
    sub.add_argument("--epochs", type=int, metavar="N", help="number of passes over the data (default: 10)")
    sub.add_argument(
        "--out", default="results", metavar="FOLDER", help="folder of run files and plot (default: %(default)s)"
    )
    sub.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="kill each training that takes longer than this (default: %(default)g)",
    )
    sub.add_argument(
        "--copy", metavar="FOLDER", help="train nothing; copy all example configurations and scripts to a new folder"
    )


def add_train(add):
    sub = configured(add, training.train, on_ranks=True)
    add_check(sub)
    sub.add_argument("-n", "--ranks", type=int, metavar="N", help="with --check: number of ranks (default: the job's)")
    add_outputs(sub)
    add_model_files(sub)
    sub.add_argument("--verbose", action="store_true", help="print the duration of each phase before the first step")
    sub.add_argument("--checkpoint", metavar="FOLDER", help="write checkpoints to FOLDER, from which --resume goes on")
    sub.add_argument(
        "--every",
        default="600s",
        metavar="N",
        help="steps (100) or seconds (60s) between two checkpoints (default: %(default)s)",
    )
    sub.add_argument(
        "--memory",
        type=int,
        metavar="STEPS",
        help="take further checkpoints every STEPS steps, in the memory of the hosts; after the loss of a host, "
        "`grsgd run --restarts` goes on from the newest checkpoint",
    )
    sub.add_argument(
        "--memory-folder",
        default="/dev/shm",
        metavar="FOLDER",
        help="folder in the memory of each host for these checkpoints (default: %(default)s)",
    )
    add_spares(sub)
    sub.add_argument(
        "--resume", metavar="FOLDER", help="go on from the last checkpoint in FOLDER; new checkpoints go there, too"
    )


def add_spares(sub: argparse.ArgumentParser):
    sub.add_argument(
        "--spares",
        type=int,
        default=0,
        metavar="K",
        help="the last K processes do not train at first: they replace processes that die",
    )


def add_check(sub: argparse.ArgumentParser):
    sub.add_argument("--check", action="store_true", help="check the configuration, describe the run, and do not train")


def add_outputs(sub: argparse.ArgumentParser):
    sub.add_argument("--out", metavar="FILE.h5", help="run file (default: results/ALGORITHM-DATE.h5)")
    sub.add_argument("--csv", metavar="FILE.csv", help="write the run's loss and metric to FILE.csv during the run")
    sub.add_argument("--tensorboard", metavar="FOLDER", help="write the same numbers to FOLDER, for TensorBoard")
    sub.add_argument("--wandb", metavar="PROJECT", help="log the same numbers to this project of W&B")
    sub.add_argument("--mlflow", metavar="URI", help="log the same numbers to MLflow: a server, or file:FOLDER")
    sub.add_argument(
        "--timeline",
        metavar="FILE.json",
        help="write each rank's activities over time to FILE.json, for ui.perfetto.dev",
    )


def add_run(add):
    run_options.add(command(add, training.run))


def add_sweep(add):
    sweep_options.add(command(add, training.sweep))


def add_model_files(sub):
    sub.add_argument(
        "--save", metavar="MODEL.pt", help="save the weights of the final, averaged model: .pt or .safetensors"
    )
    sub.add_argument("--save-best", metavar="MODEL.pt", help="save the weights of the averaged model that tested best")


def add_simulate(add):
    sub = configured(add, training.simulate)
    add_check(sub)
    add_spares(sub)
    add_outputs(sub)
    add_model_files(sub)
    sub.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks (default: %(default)s)")
    add_network(sub)
    sub.add_argument(
        "--compute",
        metavar="MODEL",
        help="computing time of a step: constant:SECONDS, lognormal:MEDIAN,SIGMA, flops:PER_SECOND, or measured "
        "(default: from the network's file, else flops:1e10)",
    )
    sub.add_argument("--timing-only", action="store_true", help="compute only times and traffic, and no gradients")
    sub.add_argument(
        "--trace",
        metavar="FILE.goal",
        help="write computations, messages and their dependencies to FILE.goal, in GOAL format",
    )


def add_network(sub: argparse.ArgumentParser):
    sub.add_argument(
        "--network",
        default="switch",
        metavar="[MEDIUM,][RATE,LATENCY]",
        help="MEDIUM: switch (each rank has a port), shared (all ranks send on one cable), FILE.toml or a --topology; "
        "RATE,LATENCY of a port or cable, such as 25gbit,20us (default: switch,1gbit,50us, or the values in the file)",
    )
    sub.add_argument(
        "--topology",
        metavar="SPEC",
        help="cabling of the network: fat-tree:k=8, torus:8x8x8, dragonfly:a=4,p=2,h=2, or hosts:8x4 (8 hosts of 4 "
        "ranks); cables, and the network cards of hosts, have the RATE,LATENCY of --network",
    )


def add_replay(add):
    sub = command(add, commands.replay)
    sub.add_argument(
        "file", metavar="FILE.goal", help="computations and messages in GOAL format, as simulate --trace writes them"
    )
    add_network(sub)


def add_evaluate(add):
    sub = command(add, commands.evaluate)
    sub.add_argument(
        "model", metavar="MODEL.pt|RUN.h5", help="model saved with --save, or a run file that names its saved model"
    )
    sub.add_argument(
        "config", nargs="?", metavar="CONFIG.toml|RUN.h5", help="configuration of MODEL.pt: its network and data"
    )
    sub.add_argument("--best", action="store_true", help="with a run file: test the model of --save-best")
    sub.add_argument(
        "--trust",
        action="store_true",
        help="import Python code that a run file names (FILE.py:NAME), which may do anything",
    )
    add_overrides(sub)


def add_calibrate(add):
    sub = configured(add, commands.calibrate, on_ranks=True)
    sub.add_argument(
        "--out", default="network.toml", metavar="FILE.toml", help="file for simulate --network (default: %(default)s)"
    )
    sub.add_argument(
        "--steps", type=int, default=30, metavar="N", help="number of training steps to time (default: %(default)s)"
    )


def add_report(add):
    sub = command(add, commands.report)
    sub.add_argument("files", nargs="+", metavar="FILE.h5", help="run files")
    sub.add_argument(
        "--group",
        nargs="?",
        const="median",
        choices=("median", "mean"),
        help="one row for all runs that differ only in the seed: their median (range), the default, or mean ± interval",
    )
    sub.add_argument(
        "--format",
        choices=("text", "md", "csv", "json", "latex"),
        help="text is as wide as the terminal; csv and json round no numbers (default: text at a terminal, else md)",
    )
    sub.add_argument(
        "--columns",
        metavar="A,B,C",
        help="print only these columns, such as time,final,sent; an unknown name prints a list of all columns",
    )
    sub.add_argument("--all", action="store_true", help="at a terminal: print all columns, in several tables if needed")


def add_plot(add):
    sub = command(add, commands.plot)
    sub.add_argument("files", nargs="+", metavar="FILE.h5", help="run files")
    sub.add_argument(
        "-o", "--out", default="runs.png", metavar="FIG", help="a .png, .pdf or .svg file (default: %(default)s)"
    )
    sub.add_argument(
        "--panels",
        default="",
        metavar="A,B,C",
        help="draw only these panels, such as accuracy/time,sent; an unknown name prints a list of all panels "
        "(default: all panels that the runs have content for)",
    )
    sub.add_argument("--labels", default="", metavar="A,B,C", help="names of the curves, in the order of the legend")
    sub.add_argument("--title", default="", metavar="TEXT", help="title above the figure")
    sub.add_argument(
        "--size", type=inches, metavar="WxH", help="width and height in inches, such as 3.5x2.5 (default: as needed)"
    )


def inches(text: str) -> tuple[float, float]:
    """Return (width, height) in inches from a text such as "3.5x2.5"."""
    width, _, height = text.partition("x")
    try:
        size = float(width), float(height)
    except ValueError:
        size = 0.0, 0.0
    if not all(1 <= side <= 100 for side in size):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 3.5x2.5, of 1 to 100 inches")
    return size


def add_topology(add):
    sub = command(add, commands.topology)
    sub.add_argument("names", nargs="*", metavar="NAME", help="topologies, or files of matrices (default: all)")
    sub.add_argument("--ranks", type=int, required=True, metavar="N", help="number of ranks")


def add_bound(add):
    sub = configured(add, commands.bound)
    sub.add_argument("--ranks", type=int, default=4, metavar="N", help="number of ranks (default: %(default)s)")
    sub.add_argument(
        "--compute",
        metavar="MODEL",
        help="computing time of a step, as in simulate, prolonged by [stragglers] of the configuration",
    )
    sub.add_argument(
        "--step-seconds", metavar="H1,H2,...", help="duration of a step of each worker in seconds, instead of --compute"
    )
    sub.add_argument(
        "--gradients",
        type=int,
        metavar="B",
        help="number of gradients per update (default: number that the server's strategy needs)",
    )


def add_coding_cost(add):
    sub = command(add, commands.coding_cost)
    sub.add_argument("--ranks", type=int, required=True, metavar="N", help="number of ranks")


def add_data(add):
    sub = command(add, commands.data)
    sub.add_argument("action", choices=("list", "fetch"), help="list all data sets, or download the named data sets")
    sub.add_argument("names", nargs="*", metavar="NAME", help="data sets to fetch")
    sub.add_argument(
        "--data-dir", default="data", metavar="DIR", help="folder with the data sets (default: %(default)s)"
    )


def add_config(add):
    sub = command(add, reference.config)
    sub.add_argument(
        "keys", nargs="*", metavar="KEY", help="sections or keys to list, such as train or train.epochs (default: all)"
    )


def add_algorithms(add):
    sub = command(add, reference.algorithms)
    sub.add_argument("names", nargs="*", metavar="NAME", help="algorithms to describe in full; also FILE.py:CLASS")
    sub.add_argument("-v", "--verbose", action="store_true", help="describe all algorithms in full")


def add_models(add):
    sub = command(add, reference.models)
    sub.add_argument("names", nargs="*", metavar="NAME", help="models to describe in full")


def add_testbed(add):
    """Add the name and help of the command ``grsgd testbed``. The module `grsgd.testbed` parses the options of ``grsgd
    testbed``."""
    add.add_parser("testbed", help="run an MPI job over hosts emulated on this machine", add_help=False)


def add_doctor(add):
    sub = command(add, doctor.doctor)
    sub.add_argument(
        "--output", default="results", metavar="DIR", help="folder of run files that is tried (default: %(default)s)"
    )
    sub.add_argument("--json", action="store_true", help="print the findings as JSON")


def add_completion(add):
    sub = command(add, completion.completion)
    sub.add_argument("shell", choices=completion.SHELLS, help="shell for which the script is printed")
