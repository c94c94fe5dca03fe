"""Losses of hosts after which ``grsgd run --restarts N`` has started the job again. The job's ranks read these losses
from the environment."""

import json
import os
import re
import time
from datetime import UTC, datetime
from typing import NamedTuple

from grsgd.job import words
from grsgd.mpi_environment import JOB, RESTARTS


class Loss(NamedTuple):
    """Loss of one or several hosts, after which a job was started again.

    ``seconds`` is the time of the loss in seconds since 1970. ``hosts`` is a text with the hosts and their ranks.
    ``sequel`` is a text on where training went on after the loss. ``sequel`` is empty until training goes on.
    """

    seconds: float
    hosts: str
    sequel: str = ""

    def __str__(self):
        sequel = f": {self.sequel}" if self.sequel else ""
        return f"{self.hosts} at {datetime.fromtimestamp(self.seconds, UTC).isoformat(timespec='seconds')}{sequel}"


def variables(losses: list[Loss], job: str = "") -> dict[str, str]:
    """Return the environment variables that tell ranks the losses and the id of their job."""
    return {RESTARTS: json.dumps(losses), JOB: job}


def job_id() -> str:
    """Return the id of this job, which stays equal after a restart; "" if `grsgd run` has not started the job."""
    found = os.environ.get(JOB, "")
    return found if re.fullmatch("[0-9a-f]{1,32}", found) else ""


def losses() -> list[Loss]:
    """Return the losses of hosts after which this job was started again, the oldest first."""
    return [Loss(*each) for each in json.loads(os.environ.get(RESTARTS) or "[]")]


def restarts() -> int:
    """Return how often `grsgd run --restarts N` has started this job again; 0 at the first start."""
    return len(losses())


def attributes(steps: int, ranks: int, where: str = "") -> dict:
    """Return the attributes of the run file about restarts, and tell `grsgd run` where training goes on.

    The function must be called when training begins on ``ranks`` ranks, after ``steps`` steps of this rank. ``where``
    is a text on the place of the checkpoint, such as "in memory".
    """
    found = losses()
    if not found:
        return {}
    seconds = max(round(time.time() - found[-1].seconds, 3), 0.0)
    sequel = f"went on after {seconds:.1f} s, from step {f'{steps} {where}'.rstrip()}, on {ranks} ranks"
    words.leave(words.GONE_ON, sequel)
    found[-1] = found[-1]._replace(sequel=sequel)
    return {"restarts": [str(loss) for loss in found], "restart_seconds": seconds}
