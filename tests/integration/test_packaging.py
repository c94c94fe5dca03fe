"""What somebody gets who installs the project, clones it or cites it."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import grsgd
from grsgd.training import description

ROOT = Path(__file__).parents[2]
SECONDS = 120
IMPORT = """
import site, sys
sys.path.insert(0, sys.argv[1])   # as of a script in that folder
site.addsitedir(sys.argv[2])
import coding, grsgd
print(coding.__file__, grsgd.__file__)
"""


def run(*words, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of what is installed, in a folder called grsgd."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("beside") / "grsgd"
    for name in ("grsgd", "coding"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build(kind: str, clone: Path) -> zipfile.ZipFile:
    """What pip makes of ``pip install .`` (wheel) or ``pip install -e .`` (editable)."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('../{kind}')"
    run(sys.executable, "-c", code, cwd=clone)
    return zipfile.ZipFile(next((clone.parent / kind).glob("*.whl")))


def test_a_script_beside_a_clone_called_grsgd_imports_the_package(clone):
    site = clone.parent / "site"
    build("editable", clone).extractall(site)
    found = run(sys.executable, "-I", "-S", "-c", IMPORT, clone.parent, site, cwd=clone.parent).split()
    assert found == [str(clone / "coding" / "__init__.py"), str(clone / "grsgd" / "__init__.py")]


def test_a_wheel_has_all_files_and_the_licence(clone):
    wheel = build("wheel", clone)
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [path for folder in ("grsgd", "coding") for path in (clone / folder).rglob("*") if path.is_file()]
    assert names == {str(path.relative_to(clone)) for path in files if path.suffix != ".pyc"}
    assert {"grsgd/demo/base.toml", "grsgd/data/sets/mnist-5k/images-idx3-ubyte.gz"} <= names
    for licence in ("LICENSE", "grsgd/data/sets/mnist-5k/LICENCE.md"):
        kept = wheel.read(f"grsgd-{grsgd.__version__}.dist-info/licenses/{licence}")
        assert kept == (ROOT / licence).read_bytes()


def test_the_citation_names_this_version_and_licence():
    citation = dict(re.findall(r"^(\S+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert citation["version"] == grsgd.__version__
    of_images = "CC-BY-SA-3.0"
    assert f"license_expression = {citation['license']} AND {of_images}\n" in (ROOT / "setup.cfg").read_text()


def test_the_version_of_an_installed_copy_is_not_the_commit_of_its_users_repository(tmp_path, monkeypatch):
    copy = tmp_path / "site-packages" / "description.py"
    copy.parent.mkdir()
    copy.touch()
    (tmp_path / "train.py").touch()
    identity = ("-c", "user.name=n", "-c", "user.email=e")
    for words in (("init", "-q"), ("add", "train.py"), (*identity, "commit", "-q", "-m", "mine")):
        run("git", *words, cwd=tmp_path)
    monkeypatch.setattr(description, "__file__", str(copy))
    assert description.commit() is None
    run("git", "add", "site-packages", cwd=tmp_path)
    assert description.commit().endswith("-dirty")


def test_git_ignores_what_commands_leave_in_the_folder_and_no_file_of_the_project():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    left = [
        "mine.h5",
        "mine.interrupted.h5",
        "runs.png",
        "mine.pt",
        "network.toml",
        "results/x.h5",
        "slurm/train-1.out",
    ]
    assert run("git", "check-ignore", *left, cwd=ROOT).split() == left
    assert run("git", "ls-files", "--ignored", "--cached", "--exclude-standard", cwd=ROOT) == ""
