"""The wheel would hold every file of the packages, and the examples."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = """
import json, pathlib, setuptools
made = setuptools.Distribution({"script_name": "setup.py"})
made.parse_config_files()
build = made.get_command_obj("build_py")
build.ensure_finalized()
files = [file for _, _, file in build.find_all_modules()]
files += [str(pathlib.Path(folder, name)) for _, folder, _, names in build.data_files for name in names]
print(json.dumps(files))
"""
"""Prints the files that setuptools would put into a wheel."""


def files_of(package: str) -> set[str]:
    """Return the paths of all files of a package, those behind links included."""
    walk = os.walk(ROOT / package, followlinks=True)
    return {
        str(Path(folder, name).relative_to(ROOT))
        for folder, _, names in walk
        for name in names
        if "__pycache__" not in folder
    }


def test_the_wheel_would_hold_every_file_of_the_packages():
    command = [sys.executable, "-W", "ignore", "-c", LIST]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout
    listed = {os.path.normpath(file) for file in json.loads(listed.splitlines()[-1])}
    assert listed == files_of("grsgd") | files_of("coding")
    assert {"grsgd/demo/base.toml", "grsgd/data/sets/mnist-5k/images-idx3-ubyte.gz"} <= listed
