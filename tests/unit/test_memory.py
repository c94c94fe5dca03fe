"""The memory that is free, and models that do not fit into it."""

import pytest
import torch

from grsgd import memory
from grsgd.config import parse
from grsgd.errors import ConfigError
from grsgd.training.inputs import load_data
from grsgd.training.memory import blueprint, check_fits, rank_bytes

CPU = torch.device("cpu")


def config(algorithm="dpsgd", **model):
    sections = {"algorithm": {"name": algorithm}, "model": {"name": "mlp"} | model, "data": {"name": "synthetic"}}
    return parse(sections | {"train": {"steps": 3}})


def group(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


STAT = {"memory__stat": "anon 5\ninactive_file 30\ntotal_inactive_file 20\n"}


@pytest.mark.parametrize(
    "files, left",
    [
        ({"memory__max": "100\n", "memory__current": "60\n"} | STAT, 70),
        ({"memory__max": "max\n", "memory__current": "60\n"} | STAT, None),
        ({"memory__limit_in_bytes": "100", "memory__usage_in_bytes": "60"} | STAT, 60),
        ({"memory__max": "50", "memory__current": "60"} | STAT, 30),
        ({}, None),
    ],
)
def test_what_a_control_group_leaves(tmp_path, files, left):
    assert memory.of_group(group(tmp_path / "group", **files)) == left


def test_the_least_of_machine_and_groups_counts(tmp_path):
    machine = memory.available(tmp_path)
    assert 2**24 < machine <= 2**50
    group(tmp_path, memory__max="1000", memory__current="400", **STAT)
    assert memory.available(tmp_path) == 630


def test_a_model_takes_no_memory_before_it_is_known_to_fit(monkeypatch):
    wanted = config(hidden=[4_000_000, 4_000_000])
    with pytest.raises(ConfigError) as refused:
        check_fits(wanted, load_data(wanted), 4, 2, CPU)
    message = str(refused.value)
    assert "model.name = 'mlp': 16,003,184,000,010 parameters" in message and "(2 ranks)" in message
    assert " TiB a rank, " in message and "\n" not in message


@pytest.mark.parametrize("algorithm", ["dpsgd", "cssgd"])
def test_ranks_of_a_host_share_its_memory(monkeypatch, algorithm):
    wanted = config(algorithm)
    data = load_data(wanted)
    each = rank_bytes(blueprint(wanted, data), wanted, 4)
    assert each >= 10 * 4 * 235_146
    monkeypatch.setattr(memory, "available", lambda: 3 * each)
    check_fits(wanted, data, 4, 3, CPU)
    with pytest.raises(ConfigError, match="take a smaller model or fewer ranks a host"):
        check_fits(wanted, data, 4, 4, CPU)
