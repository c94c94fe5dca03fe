"""The exit code of a script, known while functions registered with ``atexit`` run."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading
from grsgd.job import exit_code

def work():
    {}

exit_code.note()
atexit.register(lambda: print("noted", exit_code.noted()))
try:
    sys.exit(7)
except SystemExit as error:
    assert error.code == 7
thread = threading.Thread(target=sys.exit, args=(9,))
thread.start()
thread.join()
work()
"""


@pytest.mark.parametrize(
    "end, code",
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('a text')", 1),
        ("sys.exit(257)", 1),
    ],
)
def test_the_code_is_known_before_the_end(end, code):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end)], capture_output=True, text=True)
    assert done.returncode == code and done.stdout == f"noted {code}\n"
    assert done.stderr == ("a text\n" if "text" in end else "")
