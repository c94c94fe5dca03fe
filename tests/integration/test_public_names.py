"""The names that `import grsgd` gives."""

import subprocess
import sys

import grsgd


def test_every_public_name_is_there_and_shown():
    assert all(callable(getattr(grsgd, name)) for name in grsgd.__all__)
    assert set(grsgd.__all__) <= set(dir(grsgd))
    assert {"distribute", "load_model", "load_run", "rank", "recording", "shard"} <= set(grsgd.__all__)
    assert all(name in grsgd.__all__ for name in dir(grsgd) if name[0].isupper())


def test_to_import_it_and_list_its_names_imports_neither_torch_nor_mpi():
    code = "import grsgd, sys; dir(grsgd); sys.exit(len({'torch', 'mpi4py', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command_line_begins_without_what_it_may_not_need():
    """Ranks import it before they import torch, and help is to come at once."""
    code = "import sys; from grsgd.cli.parser import make_parser; make_parser(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "mpi4py", "numpy", "h5py", "pydantic", "tabulate"}.isdisjoint(done.stdout.split())
