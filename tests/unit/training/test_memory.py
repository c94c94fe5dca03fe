"""Models that do not fit into the memory of a host are refused."""

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


def test_a_model_takes_no_memory_before_it_is_known_to_fit(monkeypatch):
    wanted = config(hidden=[4_000_000, 4_000_000])
    with pytest.raises(ConfigError) as refused:
        check_fits(wanted, load_data(wanted), 4, 2, CPU)
    message = str(refused.value)
    assert "model.name = 'mlp': 16,003,184,000,010 parameters" in message and "(2 ranks)" in message
    assert " TiB per rank, " in message and "\n" not in message


@pytest.mark.parametrize("algorithm", ["dpsgd", "cssgd"])
def test_ranks_of_a_host_share_its_memory(monkeypatch, algorithm):
    wanted = config(algorithm)
    data = load_data(wanted)
    each = rank_bytes(blueprint(wanted, data), wanted, 4)
    assert each >= 10 * 4 * 235_146
    monkeypatch.setattr(memory, "available", lambda: 3 * each)
    check_fits(wanted, data, 4, 3, CPU)
    with pytest.raises(ConfigError, match="take a smaller model or fewer ranks per host"):
        check_fits(wanted, data, 4, 4, CPU)
