"""Data sets of text whose tokens are bytes: Moby-Dick, and users' own files."""

from pathlib import Path

from grsgd.data.base import Dataset, MissingData, dataset, find_files
from grsgd.data.text import BYTES, dataset_of_text

MOBY_DICK = "moby-dick.txt"


def moby_dick_file(directory: Path) -> list[Path]:
    """Return a list with one path, the path of the file of Moby-Dick. Raises MissingData if the file of Moby-Dick does
    not exist."""
    return find_files([directory / "moby-dick"], [MOBY_DICK])


@dataset("moby-dick", samples=(8472, 941), classes=BYTES)
def load_moby_dick(directory: Path, seed: int, block: int = 128) -> Dataset:
    """Load Herman Melville's novel Moby-Dick (1851, 1.2 MB, public domain), cut into samples of ``block`` bytes. The
    last tenth of the novel is the test data."""
    (path,) = moby_dick_file(directory)
    return dataset_of_text("moby-dick", path.read_bytes(), block, source=str(path.parent))


@dataset("text", classes=BYTES, hint="data.file names your own file in data.dir")
def load_text(directory: Path, seed: int, file: str = "input.txt", block: int = 128) -> Dataset:
    """Load a user's own text file, cut into samples of ``block`` bytes. The last tenth of the file is the test data."""
    path = directory / str(file)
    if not path.is_file():
        raise MissingData(f"no {path}")
    return dataset_of_text("text", path.read_bytes(), block, source=str(path))
