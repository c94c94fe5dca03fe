"""The packages grsgd and coding, as a program that imports them meets them."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["grsgd", "coding"])
def test_messages_of_numba_have_no_control_sequences(package):
    """With colorama, numba would write a sequence to stdout, before the path that a shell reads there."""
    pytest.importorskip("colorama")
    script = f"import {package}; from numba.core.errors import termcolor; print(type(termcolor()).__name__)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment, timeout=100)
    assert said == "NOPColorScheme\n"
