"""A rank goes on from the state in a file that may be anybody's, or refuses it in one line."""

import copy
import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from grsgd.errors import ConfigError, RunFileError
from grsgd.job.keeping import Keeping, check_keeping
from grsgd.job.resume import Resumed, average, load
from grsgd.training.checkpoint_file import Header, write
from grsgd.training.checkpoint_folder import Found, file_of, name_of
from grsgd.training.rank_state import state_of
from tests.support.exhaustive import exhaustive_unless
from tests.support.training import config, simulation

OTHERS = [None, "text", [], {}, -1, 10**9, 10**30, float("nan"), True, [[]], np.zeros(7), np.zeros((2, 2), complex)]


def trained(algorithm):
    """Return a trainer that has ended, of a job of one rank."""
    job = simulation(algorithm, 1)
    job.train()
    return job.trainers[0]


def resumed(state: dict, toml: str = "") -> Resumed:
    return Resumed(Path("kept"), 32, 1, state, None, toml, (32, 1.0))


@pytest.mark.parametrize("memory, on_disk, expected", [(None, 0, 32), (Path("memory"), 16, 16), (Path("memory"), 0, 0)])
def test_the_whole_checkpoint_in_the_folder_is_the_one_on_disk(memory, on_disk, expected):
    found = dataclasses.replace(resumed({"curve": {"name": "curve-5f"}}), memory=memory, on_disk=on_disk)
    assert found.whole == ([(name_of(expected), "curve-5f")] if expected else [])


def kept(trainer) -> dict:
    state = state_of(trainer)
    state["curve"] |= {"name": "", "digests": []}
    return state | {"code": {}}


def leaves(tree: dict, path=()):
    for name, value in tree.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))


def spoilt(state: dict, random) -> dict:
    """Return a copy of a state in which one value is missing, or another one."""
    state = copy.deepcopy(state)
    places = list(leaves(state))
    *path, last = places[random.integers(len(places))]
    tree = state
    for name in path:
        tree = tree[name]
    if random.random() < 0.3:
        del tree[last]
    else:
        tree[last] = copy.deepcopy(OTHERS[random.integers(len(OTHERS))])
    return state


@pytest.mark.parametrize(
    ("algorithm", "first"),
    exhaustive_unless(
        lambda _, first: not first, [(a, k) for a in ("dpsgd", "grsgd", "asgd") for k in range(0, 400, 40)]
    ),
)
def test_a_state_that_does_not_fit_is_refused_in_one_line(algorithm, first):
    section = {"name": algorithm, "server": "shared"} if algorithm == "asgd" else algorithm
    trainer = trained(section)
    state = kept(trainer)
    resumed(copy.deepcopy(state)).restore(trainer)
    for seed in range(first, first + 40):
        try:
            resumed(spoilt(state, np.random.default_rng(seed))).restore(trainer)
        except ConfigError as error:
            assert str(error).startswith("kept/samples-000000000032: is not what ") and "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "value"), [("early", 10**9), ("shift", 10**12), ("count", 0), ("count", 1.5), ("end", 0)]
)
def test_numbers_of_marks_that_no_run_has_are_refused_at_once(name, value):
    trainer = trained("grsgd")
    state = kept(trainer)
    state["curve"]["marks"][name] = value
    with pytest.raises(ConfigError, match="goes on from"):
        resumed(state).restore(trainer)


def test_weights_that_were_in_messages_are_made_up_for_when_a_run_goes_on():
    trainer = trained("grsgd")
    state = kept(trainer)
    for weights, expected in ((0.5, 2.0), (1.25, 0.8), (1 + 1e-9, 1.0)):
        dataclasses.replace(resumed(copy.deepcopy(state)), weights=weights).restore(trainer)
        assert trainer.algorithm.weight == pytest.approx(expected, rel=1e-6)
    dataclasses.replace(resumed(state), weights=0.5).restore(other := trained({"name": "grsgd", "merge": "average"}))
    assert other.algorithm.weight == 1


def test_an_algorithm_that_remembers_more_than_is_there_is_not_gone_on_with():
    trainer = trained("dpsgd")
    state = kept(trainer)
    del state["algorithm"]["k"]
    with pytest.raises(ConfigError, match="goes on from .KeyError: 'k of dpsgd'.$"):
        resumed(state).restore(trainer)


def test_another_configuration_is_refused_before_anything_in_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("theirs.py").write_text("open('ran', 'w')")
    mine = config("dpsgd")
    content = tomllib.loads(mine.toml())
    assert resumed({}, mine.toml()).configured(mine, 1).toml() == mine.toml()
    for table, name in (
        ("algorithm", "theirs.py:A"),
        ("model", "os:system"),
        ("data", "theirs.py:d"),
        ("optimizer", "x:y"),
    ):
        theirs = tomli_w.dumps(content | {table: {"name": name}})
        with pytest.raises(ConfigError, match=f"^kept/samples-000000000032: was made with another {table}[.]"):
            resumed({}, theirs).configured(mine, 1)
    with pytest.raises(ConfigError, match="is a checkpoint of a user's own loop"):
        resumed({}, 'own_loop = "dpsgd"').configured(mine, 1)
    with pytest.raises(ConfigError, match="its configuration is not TOML$"):
        resumed({}, "[").configured(mine, 1)
    with pytest.raises(ConfigError, match=r"another seed: 'x{150,}\.\.\., now 0$"):
        resumed({}, tomli_w.dumps(content | {"seed": "x" * 10**6})).configured(mine, 1)
    assert not Path("ran").exists()


def test_code_that_has_changed_is_said():
    state = {"code": {"model_code_sha256": "1f"}}
    assert (
        resumed(state)
        .other_code(config("dpsgd"))[0]
        .startswith("kept/samples-000000000032: model_code has changed since the checkpoint: SHA-256 '1f', now None")
    )
    assert dataclasses.replace(resumed({"code": {}})).other_code(config("dpsgd")) == []


def put(folder: Path, states: list[dict]) -> Path:
    """Write a checkpoint after 32 samples, with these states of its ranks."""
    place = folder / name_of(32)
    place.mkdir(exist_ok=True)
    for rank, state in enumerate(states):
        write(place / file_of(rank), Header("a", 32, len(states), rank), state, "")
    return place


@pytest.mark.parametrize("value", ["1.5", float("nan"), float("inf"), -1, True, None, 10**18])
@pytest.mark.parametrize(("section", "name"), [("progress", "elapsed"), ("progress", "samples"), ("totals", "steps")])
def test_counts_and_times_that_no_run_comes_to_are_refused(section, name, value, tmp_path):
    state = kept(trained("dpsgd"))
    put(tmp_path, [state])
    assert load(tmp_path, Found(32, 1), rank=0, ranks=1).samples == 32
    state[section][name] = value
    put(tmp_path, [state])
    with pytest.raises(RunFileError, match=f"is not what .* goes on from .ValueError: {section}.{name} = "):
        load(tmp_path, Found(32, 1), rank=0, ranks=1)


def test_the_average_is_by_weights_and_of_models_of_one_shape(tmp_path):
    def state(weight, *values):
        of_one = np.array(values, np.float32)
        return {"weight": weight, "result": {}, "model": {"parameters": of_one, "buffers": of_one}}

    parameters, buffers = average(put(tmp_path, [state(1.0, 0, 4), state(3.0, 4, 0)]), 2)
    assert parameters.tolist() == [3, 1] and buffers.tolist() == [2, 2] and parameters.dtype == np.float32
    with pytest.raises(ValueError, match="the models in rank-0000.ckpt and rank-0001.ckpt have different shapes"):
        average(put(tmp_path, [state(1.0, 0, 4), state(3.0, 4)]), 2)  # NumPy would add them


def test_a_folder_may_be_named_in_two_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, [{}])
    check_keeping(config("dpsgd"), Keeping(tmp_path, None, Path(".")))
    with pytest.raises(ConfigError, match="there are checkpoints of another run"):
        check_keeping(config("dpsgd"), Keeping(tmp_path, None, tmp_path / "other"))
