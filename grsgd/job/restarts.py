"""Losses of hosts after which ``grsgd run --restarts N`` has started the job again, as its ranks know them."""

import json
import os
import time
from datetime import UTC, datetime
from typing import NamedTuple

from grsgd.job import words
from grsgd.mpi_environment import RESTARTS


class Loss(NamedTuple):
    """Loss of hosts.

    ``seconds`` is the time of the loss since 1970. ``hosts`` is text with the hosts and their ranks. ``sequel`` says
    where training went on after the loss; it is empty if training has not gone on yet.
    """

    seconds: float
    hosts: str
    sequel: str = ""

    def __str__(self):
        sequel = f": {self.sequel}" if self.sequel else ""
        return f"{self.hosts} at {datetime.fromtimestamp(self.seconds, UTC).isoformat(timespec='seconds')}{sequel}"


def variables(losses: list[Loss]) -> dict[str, str]:
    """Return the environment variable by which ranks know the losses."""
    return {RESTARTS: json.dumps(losses)}


def losses() -> list[Loss]:
    """Return the losses after which this job was started again."""
    return [Loss(*each) for each in json.loads(os.environ.get(RESTARTS) or "[]")]


def restarts() -> int:
    """Return how often `grsgd run --restarts N` has started this script again; 0 at its first start."""
    return len(losses())


def attributes(steps: int, ranks: int) -> dict:
    """Return the attributes of the run file about restarts, and tell `grsgd run` where training goes on.

    To be called when training begins on ``ranks`` ranks, after ``steps`` steps of this rank.
    """
    found = losses()
    if not found:
        return {}
    seconds = max(round(time.time() - found[-1].seconds, 3), 0.0)
    sequel = f"went on after {seconds:.1f} s, from step {steps}, on {ranks} ranks"
    words.leave(words.GONE_ON, sequel)
    found[-1] = found[-1]._replace(sequel=sequel)
    return {"restarts": [str(loss) for loss in found], "restart_seconds": seconds}
