"""Reading of source code outside this package, such as a user's model. The functions of this module find a source file,
read it, and compute its SHA-256 digest, before any of its code is executed."""

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from grsgd.outside.kinds import THIS, is_own_file


class SourceFile(NamedTuple):
    """Content of a source file when it was read, together with the contents of the files in its folder that it imports.

    ``text`` is the content of the source file and, below it, the content of each imported file. In ``text``, a comment
    line with the imported file's name precedes its content. ``sha256`` is the SHA-256 digest of the file's bytes. If
    the file imports other files of its folder, ``sha256`` is the digest of ``text`` in UTF-8. ``content`` has the bytes
    of the source file without the imported files.
    """

    path: str
    text: str
    sha256: str
    content: bytes


def source_at(path: str, module: str = "") -> SourceFile:
    """Read the source file ``path`` and the files of its folder that it imports. Raises OSError if a file cannot be
    read, and SyntaxError or UnicodeDecodeError if a file is not Python code.

    ``module`` is the full name of the module that the file defines, for example ``package.part``. If ``module`` is "",
    the file is a single file, and imported files are searched in its folder.
    """
    content = Path(path).read_bytes()
    text = importlib.util.decode_source(content)
    levels = module.count(".") + (Path(path).name == "__init__.py")
    folder = Path(path).parents[levels] if module else Path(path).parent
    beside = files_beside(Path(path), folder) if is_own_file(Path(path)) else []
    if not beside:
        return SourceFile(path, text, hashlib.sha256(content).hexdigest(), content)
    for file in beside:
        text += f"\n# ---- {file.relative_to(folder)}\n{importlib.util.decode_source(file.read_bytes())}"
    return SourceFile(path, text, hashlib.sha256(text.encode()).hexdigest(), content)


def files_beside(path: Path, folder: Path) -> list[Path]:
    """Return the files of ``folder`` that the file ``path`` in this folder imports, directly or indirectly. The
    returned paths are sorted."""
    found, left = {path}, [path]
    while left:
        new = set(imported_by(left.pop(), folder)) - found
        found |= new
        left += new
    return sorted(found - {path})


def imported_by(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of ``folder`` that the file ``path`` in this folder imports directly."""
    package = path.relative_to(folder).parent.parts
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = [*package[: len(package) + 1 - node.level]] if node.level else []
            module = start + (node.module.split(".") if node.module else [])
            names = [[*module, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] not in THIS:
                yield from files_of(name, folder)


def files_of(name: list[str], folder: Path) -> Iterator[Path]:
    """Yield the files in ``folder`` that Python reads to import the module ``name``. The files of the parent packages
    of ``name`` come first."""
    for end in range(1, len(name) + 1):
        place = folder.joinpath(*name[:end])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                yield file
                break


def check_beside(path: str):
    """Raise ImportError if the file at ``path`` imports a module of its own folder, but Python would import another
    module of that name."""
    folder = Path(path).parent
    for file in files_beside(Path(path), folder):
        top = file.relative_to(folder).parts[0].removesuffix(".py")
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        there = os.path.realpath(spec.origin) if spec and spec.origin and os.path.isabs(spec.origin) else None
        if spec and spec.origin and (there is None or not Path(there).is_relative_to(os.path.realpath(folder))):
            raise ImportError(f"imports {top}, which is not {file}, but {spec.origin}: give that file another name")


def file_of_module(name: str) -> str | None:
    """Return the path of the file of the module ``name``, without importing this module or its parent packages. Return
    None if Python finds no file for the module."""
    spec, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        places = spec.submodule_search_locations if spec else None
        if spec and places is None:
            return None
        found = (finder.find_spec(".".join(parts[:end]), places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
    return spec.origin if spec.has_location else None
