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
