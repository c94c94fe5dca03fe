"""What a parameter server does after a rest."""

from types import SimpleNamespace

import torch

from grsgd.algorithms.parameter_server.server import Server
from grsgd.models.flat import Flat


def test_after_a_rest_all_workers_hold_the_present_model():
    went_on = []
    server = SimpleNamespace(
        finished={1},
        n=3,
        versions=[1, 2, 3],
        w=torch.ones(2),
        driver=SimpleNamespace(clock=lambda: 7.0),
        answers=[Flat.zeros(2, torch.float32, torch.device("cpu")) for _ in range(3)],
        strategy=SimpleNamespace(version=9, go_on=lambda *arguments: went_on.append(arguments)),
    )
    Server.go_on(server)
    assert server.versions == [9] * 3 and server.finished == set() and went_on == [({0, 1, 2}, 7.0)]
    assert all(answer.array.tolist() == [1, 1] for answer in server.answers)
