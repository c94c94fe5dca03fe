"""What there is, as the program tells it: keys of a configuration, algorithms, models, commands; completion."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import BaseModel

from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.base import FAMILIES
from grsgd.cli import main
from grsgd.cli.fields import describe_field
from grsgd.cli.parser import make_parser
from grsgd.config import Config
from grsgd.config.sections import Pause, Tail
from grsgd.models.zoo import MODELS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def grsgd(capsys):
    """Runs a command; returns exit code, stdout and stderr."""

    def run(*arguments):
        code = main([*arguments])
        return code, *capsys.readouterr()

    return run


def sections(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and the sections in it."""
    annotations = [field.annotation for field in model.model_fields.values()]
    inner = [kind for kind in annotations if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [model, *(section for kind in inner for section in sections(kind))]


@pytest.mark.parametrize(
    "section",
    [*sections(Config), Tail, Pause, *(algorithm.Options for algorithm in ALGORITHMS.values())],
    ids=lambda section: section.__name__,
)
def test_every_key_is_described(section):
    for name, field in section.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert is_section or field.description and len(field.description) > 5, name


def test_every_key_of_a_configuration_is_listed(grsgd):
    code, output, _ = grsgd("config")
    assert code == 0
    for name, field in Config.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert (f"[{name}]" if is_section else f"{name} = ") in output
        for key in field.annotation.model_fields if is_section else ():
            assert f"\n    {key} " in output
    assert "\n        probability: " in output


@pytest.mark.parametrize(
    "key, line",
    [
        ("seed", "seed = 0: seed of all random choices: models, shards, batches, partners [integer >= 0, < 2^63]"),
        (
            "device",
            'device = "auto": device on which ranks train; auto: a GPU if torch and CuPy find one, else the CPU '
            "[auto | cpu | cuda]",
        ),
        (
            "train.epochs",
            "train.epochs (not given): end after this number of passes over the data by all ranks together "
            "[number > 0, <= 1000000000]",
        ),
        ("data.augment", "data.augment = false: random crops and flips of the training images [true | false]"),
        ("model.name", "model in `grsgd models`, or FILE.py:NAME; further keys are its options [string]"),
        ("schedule.milestones", "[list of number > 0]"),
        ("stragglers.slowdown", "[table of rank = number >= 1]"),
    ],
)
def test_a_key(grsgd, key, line):
    code, output, _ = grsgd("config", key)
    assert code == 0 and output.count("\n") == 1 and output.endswith(f"{line}\n")


def test_a_section_and_a_key(grsgd):
    code, output, _ = grsgd("config", "optimizer", "train.steps")
    assert code == 0
    assert (
        output.startswith("[optimizer]\n    name = ")
        and "\n    further keys: " in output
        and "\ntrain.steps (" in output
    )


@pytest.mark.parametrize(
    "key, reason",
    [
        ("trian", "trian: unknown key (did you mean train?); allowed: seed, device, dtype, algorithm"),
        ("train.epoch", "train.epoch: unknown key (did you mean epochs?); allowed: epochs, steps"),
        ("algorithm.H", "algorithm.H: unknown key; allowed: name; further keys: the options of the algorithm, which"),
        ("seed.x", "seed has no keys"),
        ("", ": unknown key; allowed: seed"),
    ],
)
def test_unknown_keys(grsgd, key, reason):
    code, output, error = grsgd("config", key)
    assert code == 2 and not output and error.startswith(f"grsgd: error: config: {reason}") and error.count("\n") == 1


def test_options_of_an_algorithm_that_are_lists_and_unions():
    class Options(BaseModel):
        hops: list[int] = [1, 2]
        share: float | None = None

    assert describe_field(Options, "hops") == ["hops = [1, 2]: None [list of integer]"]
    assert describe_field(Options, "share") == ["share (not given): None [number]"]


def test_algorithms_in_a_table(grsgd):
    code, output, _ = grsgd("algorithms")
    lines = output.splitlines()
    assert code == 0 and len(lines) < 3 * len(ALGORITHMS) + 6 and max(map(len, lines)) <= 120
    at, listed, family = lines[0].index("name"), {}, ""
    for line in lines[2 : lines.index("")]:
        family = line[:at].strip() or family
        if name := line[at:].partition(" ")[0]:
            listed.setdefault(family, []).append(name)
    assert list(listed) == list(FAMILIES) and all(names == sorted(names) for names in listed.values())
    assert listed == {
        family: [name for name in sorted(ALGORITHMS) if ALGORITHMS[name].traits.family == family] for family in FAMILIES
    }
    assert "Each rank mixes its model with its neighbours'" in output and "Lian et al. 2017" in output


def test_all_about_an_algorithm_and_about_all(grsgd):
    one, all_of_them = grsgd("algorithms", "local_sgd")[1], grsgd("algorithms", "-v")[1]
    assert one.startswith("local_sgd (synchronous)\n") and "\n    H = " in one and "source: Stich 2019" in one
    assert one in all_of_them and all(f"\n{name} (" in f"\n{all_of_them}" for name in ALGORITHMS)


def test_models(grsgd):
    code, output, _ = grsgd("models")
    assert code == 0 and all(f"\n{name} " in output for name in MODELS) and "235,146" in output
    code, output, _ = grsgd("models", "mlp", "cnn")
    assert code == 0 and "\n    hidden = [256, 128]\n" in output and "\n    no options\n" in output
    assert grsgd("models", "vgg")[2] == f"grsgd: error: models: vgg: unknown; allowed: {', '.join(MODELS)}\n"


def test_without_a_command_the_help_is_printed(grsgd):
    code, output, error = grsgd()
    assert code == 2 and not error and output == make_parser().format_help() and "examples:" in output


def commands() -> dict:
    return next(action for action in make_parser()._actions if action.dest == "==SUPPRESS==").choices


@pytest.mark.parametrize("name", [name for name in commands() if name != "testbed"])
def test_every_command_has_an_example_that_can_be_read(name):
    """The options in it are the command's."""
    help_text = commands()[name].format_help()
    examples = [
        line for line in commands()[name].epilog.splitlines() if line.startswith("  ") and f"grsgd {name}" in line
    ]
    assert examples and all(example in help_text for example in examples)
    for example in examples:
        words = re.split("[#>)]", example.split(f"grsgd {name}")[1])[0].split()
        make_parser().parse_args([name, *words])


# ---- completion

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_grsgd grsgd "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(grsgd, tmp_path):
    """What bash completes the last of some words to."""
    script = tmp_path / "grsgd.bash"
    script.write_text(grsgd("completion", "bash")[1])

    def words(*words: str) -> list[str]:
        line = ["bash", "-c", COMPLETE, "bash", script, *words]
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    return words


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_completion_in_bash(complete):
    assert complete("grsgd", "al") == ["algorithms"]
    assert set(complete("grsgd", "")) == set(commands())
    assert {"--set", "--out", "--data-dir"} <= set(complete("grsgd", "train", "--"))
    assert complete("grsgd", "train", "experiments/demo/dp") == ["experiments/demo/dpsgd.toml"]
    assert complete("grsgd", "algorithms", "") == sorted(ALGORITHMS)
    assert complete("grsgd", "config", "sche") == ["schedule"]
    assert complete("grsgd", "train", "x.toml", "--data-dir", "experiments/de") == ["experiments/demo"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_can_be_read(grsgd, shell, tmp_path):
    code, script, _ = grsgd("completion", shell)
    assert code == 0 and "grsgd" in script and "algorithms" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "script").write_text(script)
    done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
