"""The exit code of a script, known while functions registered with ``atexit`` run."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys, threading, types
from sys import exit as leave
from grsgd.job import exit_code

later = sys.modules["later"] = types.ModuleType("later")
later.leave = leave

def work():
    {}

exit_code.{}()
atexit.register(lambda: print("noted", exit_code.noted()))
try:
    sys.exit(7)
except SystemExit as error:
    assert error.code == 7
def in_thread():
    try:
        sys.exit(8)
    except SystemExit:
        sys.exit(9)

thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
work()
"""


@pytest.mark.parametrize(
    "end, code, note",
    [
        ("pass", 0, "note"),
        ("sys.exit()", 0, "note"),
        ("sys.exit(3)", 3, "note"),
        ("sys.exit('a text')", 1, "note"),
        ("sys.exit(257)", 1, "note_every_exit"),
        ("raise SystemExit(3)", 3, "note_every_exit"),
        ("raise SystemExit", 0, "note_every_exit"),
        ("exit(4)", 4, "note_every_exit"),
        ("leave(5)", 5, "note_every_exit"),
        ("later.leave(6)", 6, "note_every_exit"),
    ],
)
def test_the_code_is_known_before_the_end(end, code, note):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(end, note)], capture_output=True, text=True)
    assert done.returncode == code and done.stdout == f"noted {code}\n"
    assert done.stderr == ("a text\n" if "text" in end else "")
