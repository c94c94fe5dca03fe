"""Recipes for other package managers have the version, the dependencies and the licence of setup.cfg."""

import configparser
import re
from pathlib import Path

import pytest
import yaml

import grsgd
from grsgd.config import load

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
OTHER_NAMES = {"matplotlib-base": "matplotlib", "pytorch": "torch"}
"""Names of conda-forge, and names on PyPI."""


@pytest.fixture
def setup() -> configparser.ConfigParser:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def required(setup) -> dict[str, str]:
    """Return the lowest version of each package that setup.cfg requires."""
    return dict(line.split(">=") for line in setup["options"]["install_requires"].split())


def test_the_recipe_for_conda(setup):
    recipe = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
    python, *others = recipe["requirements"]["run"]
    lowest, end = re.fullmatch(r">=(.+),<(.+)", setup["options"]["python_requires"]).groups()
    found = dict(line.split(" >=") for line in others)
    assert {OTHER_NAMES.get(name, name): version for name, version in found.items()} == required(setup)
    assert recipe["context"] == {"version": grsgd.__version__, "python_min": lowest}
    assert python == f"python >=${{{{ python_min }}}},<{end}"
    assert recipe["about"]["license"] == setup["metadata"]["license_expression"]


def test_the_recipe_for_spack(setup):
    recipe = (PACKAGING / "spack" / "package.py").read_text()
    found = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):"\)', recipe))
    assert found == required(setup)
    assert f'version("{grsgd.__version__}"' in recipe and f"grsgd-{grsgd.__version__}.tar.gz" in recipe
    assert setup["metadata"]["license_expression"] in recipe


def test_the_job_for_kubernetes_trains_its_configuration_on_all_slots(tmp_path):
    _, config, job = yaml.safe_load_all((PACKAGING / "kubernetes" / "mpijob.yaml").read_text())
    roles = job["spec"]["mpiReplicaSpecs"]
    words = roles["Launcher"]["template"]["spec"]["containers"][0]["args"]
    ranks = int(words[words.index("-n") + 1])
    assert ranks == job["spec"]["slotsPerWorker"] * roles["Worker"]["replicas"]
    assert words[words.index("train") + 1] == "/etc/grsgd/run.toml"
    (tmp_path / "run.toml").write_text(config["data"]["run.toml"])
    load(tmp_path / "run.toml").check_ranks(ranks)


def test_the_changelog_begins_with_this_version_and_has_short_entries():
    lines = (ROOT / "CHANGES.md").read_text().splitlines()
    assert next(line for line in lines if line.startswith("## ")).startswith(f"## [{grsgd.__version__}]")
    entries = [re.sub(r"\]\([^)]*\)", "]", line) for line in lines if line.startswith("- ")]
    assert [entry for entry in entries if len(entry) > 200] == []
