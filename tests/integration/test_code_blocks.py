"""Code on pages: Python compiles, configurations are accepted, and commands, targets and modules exist.

A comment ``<!-- not checked: REASON -->`` before a block leaves the block out.
"""

import ast
import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from grsgd.cli import parse
from grsgd.config import load
from grsgd.simulator.network import network
from grsgd.testbed.__main__ import make_parser
from tests.support.code_blocks import ALL

ROOT = Path(__file__).parents[2]
BASE = """
algorithm.name = "dpsgd"
model.name = "mlp"
data.name = "synthetic"
train.epochs = 1
"""
TARGETS = set(re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(?:sudo (?:-E )?)?(?:\S*/)?(?:mpiexec .*?|mpirun .*?|srun .*?)?"
    r"((?:\S*/)?grsgd (?!-).*|make .*|(?:\S*/)?python -m .*)$"
)


def commands() -> dict[str, str]:
    """Return the commands in all blocks that are no Python and no TOML, with the page of each."""
    found = {}
    for block in ALL:
        if block.language not in ("python", "toml"):
            for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
                for piece in re.split(r"&&|;|\|(?!\w)", line.partition(" #")[0]):
                    if command := COMMAND.match(piece.strip()):
                        found[command[1]] = block.page
    return found


COMMANDS = commands()


def test_the_pages_have_blocks_of_each_kind():
    assert {"python", "toml", "bash"} <= {block.language for block in ALL}
    assert len(COMMANDS) > 100


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "python"], ids=str)
def test_python_compiles(block):
    ast.parse(block.code)


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "toml"], ids=str)
def test_a_configuration_or_a_network_is_accepted(block, tmp_path):
    """A part of a configuration is accepted on top of a small one."""
    content = tomllib.loads(block.code)
    path = tmp_path / "block.toml"
    if "bandwidth" in content:
        path.write_text(block.code)
        network(str(path))
    elif "project" not in content:  # a pyproject.toml
        (tmp_path / "base.toml").write_text(BASE)
        path.write_text(f'base = "base.toml"\n{block.code}')
        load(path)


@pytest.mark.parametrize("command", [command for command in COMMANDS if re.match(r"\S*grsgd ", command)])
def test_a_command_of_grsgd_is_understood(command):
    words = shlex.split(re.sub(r"[<>].*", "", command))[1:]
    if words[0] == "testbed":
        make_parser().parse_args(words[1 : words.index("--") if "--" in words else None])
    else:
        parse(words)


def test_targets_of_make_exist():
    for command, page in COMMANDS.items():
        if command.startswith("make "):
            for target in re.findall(r"(?<= )[\w-]+(?= |$)", re.sub(r"[\w]+=(\"[^\"]*\"|\$\(.*\)|\S+)", "", command)):
                assert any(re.fullmatch(known.replace("%", ".+"), target) for known in TARGETS), f"{page}: {command}"


def test_modules_exist():
    for command, page in COMMANDS.items():
        if found := re.search(r"python -m ([\w.]+)", command):
            assert importlib.util.find_spec(found[1]) is not None, f"{page}: {command}"
