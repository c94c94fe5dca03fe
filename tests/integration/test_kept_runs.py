"""Runs that experiments keep are taken for no others: whatever decides what is in a run is in the name of its file."""

import io
import tarfile
import tomllib

import pytest

from experiments import papers
from experiments.asynchronous import points as asynchronous_points
from experiments.atlas import points as atlas
from experiments.atlas.__main__ import hosts as hosts_of_atlas
from experiments.learning import __main__ as learning
from experiments.multicast import measure
from experiments.multicast.figures import plan
from experiments.runner import code, hosts
from experiments.runner.hosts import Hosts
from experiments.runner.kept import SIMULATING
from experiments.runner.run_spec import Link
from experiments.runner.store import STEP_BY_STEP, Store
from experiments.scaling import __main__ as scaling
from experiments.validation import rounds
from experiments.validation.settings import EmulatedCluster
from experiments.validation.variant import Variant
from grsgd.config import parse
from grsgd.config.sources import digest
from grsgd.runs.finished import finished_run
from grsgd.runs.run_file import load_run, save_run
from tests.support.runs import fake_run

SETTING = EmulatedCluster("four", "four hosts", 4, "100mbit")
OTHERS = [
    EmulatedCluster("four", "four hosts", 8, "100mbit"),
    EmulatedCluster("four", "four hosts", 4, "200mbit"),
    EmulatedCluster("four", "four hosts", 4, "100mbit", 0.1),
    EmulatedCluster("four", "four hosts", 4, "100mbit", slow={0: 2.0}),
    EmulatedCluster("four", "four hosts", 4, "100mbit", slow_links={3: "25mbit"}),
]
VARIANT = Variant("dpsgd", ())


def path_of(planned, folder, on: Hosts = SIMULATING):
    return Store(folder, on).path(planned.spec())


def of_scaling(folder):
    nets, speeds = (next(iter(table)) for table in (scaling.NETWORKS, scaling.SPEEDS))
    return path_of(scaling.ScalingRun("dpsgd", 4, nets, speeds, 1), folder)


def of_atlas(is_measured):
    planned = "cnn", "dpsgd", 1, "10mbit", 4, is_measured
    return lambda folder: path_of(atlas.AtlasRun(*planned), folder, hosts_of_atlas())


def of_figures(folder):
    task, by_nodes = next(iter(plan.SMALL)), 4
    return path_of(plan.Turn(0, task, by_nodes, plan.MULTICAST), folder, measure.SharedMedium(plan.CPU))


FILES = {
    "asynchronous": lambda folder: path_of(asynchronous_points.StrategyRun("equal", "bsp", 0.2, 0), folder),
    "atlas, simulated": of_atlas(False),
    "atlas, measured": of_atlas(True),
    "learning": lambda folder: path_of(learning.LearningRun("cnn", "dpsgd", 1.0, 0), folder),
    "scaling": of_scaling,
    "validation": lambda folder: rounds.file_of(folder, SETTING, VARIANT),
    "figures": of_figures,
    "multicast": lambda folder: path_of(measure.MediumRun(4, "ssgd", 0), folder, measure.SharedMedium()),
}
ANOTHER = "64 cores, another processor"
CHANGES = [
    ("asynchronous", asynchronous_points, "NETWORK", Link("10mbit", nominal=True)),
    ("asynchronous", asynchronous_points, "RANKS", 17),
    ("asynchronous", asynchronous_points, "SECONDS", 0.2),
    ("atlas, simulated", atlas, "LATENCY", "50ms"),
    ("atlas, simulated", atlas, "HOSTS", 8),
    ("atlas, measured", atlas, "HOSTS", 8),
    ("atlas, measured", atlas, "CPU", 0.2),
    ("atlas, measured", hosts, "describe_machine", lambda: ANOTHER),
    ("learning", learning, "NETWORK", Link("10mbit", nominal=True)),
    ("learning", learning, "RANKS", 16),
    ("learning", learning, "COMPUTE", "constant:0.1"),
    ("scaling", scaling, "NETWORKS", dict.fromkeys(scaling.NETWORKS, Link("2gbit", nominal=True))),
    ("scaling", scaling, "COMPUTE_SECONDS", 0.2),
    ("validation", rounds, "CALIBRATION_STEPS", 600),
    ("validation", rounds, "describe_machine", lambda: ANOTHER),
    ("multicast", measure, "MEDIUM", Link("200mbit", "shared")),
    ("figures", plan, "CPU", 0.4),
    ("figures", measure, "describe_machine", lambda: ANOTHER),
]


@pytest.mark.parametrize("name, module, constant, value", CHANGES)
def test_a_run_is_not_taken_for_one_of_another_network_ranks_computing_or_hosts(
    name, module, constant, value, tmp_path, monkeypatch
):
    path = FILES[name](tmp_path)
    save_run(path, fake_run())
    assert finished_run(FILES[name](tmp_path)) is not None
    monkeypatch.setattr(module, constant, value)
    assert FILES[name](tmp_path) != path and finished_run(FILES[name](tmp_path)) is None


@pytest.mark.parametrize("name", FILES)
def test_a_run_is_not_taken_for_one_of_other_code(name, tmp_path, monkeypatch):
    path = FILES[name](tmp_path)
    monkeypatch.setattr(code, "digest_code", lambda: "another version")
    assert FILES[name](tmp_path) != path


def test_a_setting_of_the_validation_is_more_than_its_name(tmp_path):
    paths = {rounds.file_of(tmp_path, setting, VARIANT) for setting in (SETTING, *OTHERS)}
    assert len(paths) == 1 + len(OTHERS)


def test_distributions_are_more_than_their_names(tmp_path, monkeypatch):
    """The same name, with random times in place of constant ones, and with a slow worker."""
    paths = {FILES["asynchronous"](tmp_path)}
    for changed in ({"sigma": 0.3}, {"slowdown": (1.0,) * 7 + (3.0,)}):
        other = asynchronous_points.DISTRIBUTIONS["equal"]._replace(**changed)
        monkeypatch.setitem(asynchronous_points.DISTRIBUTIONS, "equal", other)
        paths.add(FILES["asynchronous"](tmp_path))
    assert len(paths) == 3


def test_the_code_of_a_run_is_that_of_all_modules(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    for module in (code.grsgd, code.coding):
        monkeypatch.setattr(module, "__file__", str(package / "__init__.py"))
    seen = set()
    for content in ("a = 1", "a = 2"):
        (package / "deep.py").write_text(content)
        seen.add(code.digest_code.__wrapped__())
    assert len(seen) == 2


def test_runs_that_are_recorded_have_the_names_by_which_they_are_looked_for(tmp_path):
    """One of each paper whose times mean nothing, so that its name depends on no calibration."""
    for archive in sorted((papers.ROOT / "docs" / "results" / "smoke").glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            member = next(each for each in packed if "-steps-" in each.name)
            path = tmp_path / member.name
            path.write_bytes(io.BufferedReader(packed.extractfile(member)).read())
        run = load_run(path)
        config, ranks = parse(tomllib.loads(run.attributes["config"]), path.name), run.attributes["ranks"]
        assert path.stem.endswith(digest(config, ranks, "steps", str(STEP_BY_STEP)))
