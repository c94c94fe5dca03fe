"""Starting commands from tests as from a terminal."""

import signal
import subprocess
from pathlib import Path

from experiments.environment import environment

ROOT = Path(__file__).parents[1]


def start(command: list, **kwargs) -> subprocess.Popen:
    """A command in a process group of its own that can be ended with Ctrl-C, which shells take from what they start in
    the background: tests, and what tests start."""
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **kwargs,
    )
