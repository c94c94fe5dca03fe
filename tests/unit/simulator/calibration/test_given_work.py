"""Work of a given time, by a clock that each product moves on."""

import pytest

from grsgd.simulator.calibration import given_work
from grsgd.simulator.calibration.given_work import POLL_EVERY, work_of


class Products:
    """A small matrix whose product with itself takes ``seconds``."""

    def __init__(self, seconds: float):
        self.seconds, self.count = seconds, 0

    def __matmul__(self, other):
        self.count += 1

    def clock(self) -> float:
        return self.count * self.seconds


@pytest.mark.parametrize("seconds, times", [(0.5, 5000), (0.0101, 101), (0.0, 1)])
def test_work_takes_as_many_products_as_fit_into_its_seconds(seconds, times, monkeypatch):
    products, polls = Products(1e-4), []
    monkeypatch.setattr(given_work, "BUSY", products)
    monkeypatch.setattr(given_work.time, "perf_counter", products.clock)
    work = work_of(seconds, lambda: polls.append(products.count))
    measuring = products.count
    assert measuring == 1000
    for _ in range(2):
        before, looked = products.count, len(polls)
        work()
        assert products.count - before == times
        assert [number - before for number in polls[looked:]] == list(range(1, times + 1, POLL_EVERY))
