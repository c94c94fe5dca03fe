"""Losses of hosts after which ``grsgd run --restarts N`` has started the job again, as its ranks know them."""

import json
import os
import re
import time
from datetime import UTC, datetime
from typing import NamedTuple

from grsgd.job import words
from grsgd.mpi_environment import JOB, RESTARTS


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


def variables(losses: list[Loss], job: str = "") -> dict[str, str]:
    """Return the environment variables by which ranks know the losses, and the id of their job."""
    return {RESTARTS: json.dumps(losses), JOB: job}


def job_id() -> str:
    """Return the id of this job, which is the same after a restart; "" if `grsgd run` has not started the job."""
    found = os.environ.get(JOB, "")
    return found if re.fullmatch("[0-9a-f]{1,32}", found) else ""


def losses() -> list[Loss]:
    """Return the losses after which this job was started again."""
    return [Loss(*each) for each in json.loads(os.environ.get(RESTARTS) or "[]")]


def restarts() -> int:
    """Return how often `grsgd run --restarts N` has started this script again; 0 at its first start."""
    return len(losses())


def attributes(steps: int, ranks: int, where: str = "") -> dict:
    """Return the attributes of the run file about restarts, and tell `grsgd run` where training goes on.

    To be called when training begins on ``ranks`` ranks, after ``steps`` steps of this rank. ``where`` is text on the
    place of the checkpoint, such as "in memory".
    """
    found = losses()
    if not found:
        return {}
    seconds = max(round(time.time() - found[-1].seconds, 3), 0.0)
    sequel = f"went on after {seconds:.1f} s, from step {f'{steps} {where}'.rstrip()}, on {ranks} ranks"
    words.leave(words.GONE_ON, sequel)
    found[-1] = found[-1]._replace(sequel=sequel)
    return {"restarts": [str(loss) for loss in found], "restart_seconds": seconds}
