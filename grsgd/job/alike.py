"""Comparison of the ranks' configurations, data and models before training. Each rank reads its own files, and all
ranks must have equal content."""

from collections.abc import Callable
from functools import partial

from grsgd import __version__
from grsgd.comm.watchdog import within
from grsgd.config import Config
from grsgd.config.reading import OF_FILES
from grsgd.config.sources import digests_of
from grsgd.data import Dataset
from grsgd.data.base import CLASSES
from grsgd.data.digest import digest_of
from grsgd.errors import SetupError
from grsgd.job import launch
from grsgd.runs.settings import flattened
from grsgd.text import ranks_in_words
from grsgd.training.inputs import in_own_code

MANY = 4
"""Largest number of ranks, and of different values, that the error message of `check_alike` lists."""
MISSING = "not there"
"""Text in place of a value that a rank lacks, such as a key that is absent from the rank's configuration."""


def check_alike(mpi, make_facts: Callable[[], dict[str, object]], cure: str, seconds: float):
    """Raise SetupError on all ranks if a fact (named value) differs between ranks, or if a rank cannot determine its
    facts. All ranks must call this function.

    ``make_facts`` returns this rank's facts, a dictionary from names to small values. A fact with the value None is not
    compared. A fact that some ranks have and other ranks lack counts as a difference. ``cure``, the advice to the user,
    is the end of the error message.
    """
    with launch.collective_setup(mpi, seconds):
        facts = make_facts()
    with within(seconds, "comparing the inputs of all ranks"):
        if len(set(mpi.allgather(digest_of(facts)))) == 1:
            return
        of_ranks = mpi.allgather(facts)
    for name in dict.fromkeys(name for found in of_ranks for name in found):
        values = [found.get(name, MISSING) for found in of_ranks]
        if None not in values and any(value != values[0] for value in values):
            raise SetupError(f"the ranks differ: {name}: {by_rank(values)}: {cure}", is_printed=mpi.rank == 0)


def by_rank(values: list) -> str:
    """Return a text with each different value of ``values`` (one per rank) and the ranks that have this value: "60 on
    ranks 0, 2; 66 on rank 1"."""
    holders: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        holders.setdefault(f"{value}", []).append(rank)
    parts = [f"{value} on {ranks_in_words(ranks, MANY)}" for value, ranks in holders.items()]
    return "; ".join(parts[:MANY]) + (f" and {len(parts) - MANY} more" if len(parts) > MANY else "")


def check_configuration(mpi, config: Config):
    """Raise SetupError on all ranks if the ranks' configurations differ, or if the user's code that the configurations
    name differs.

    The folder of the data (``data.dir``) may differ between ranks.
    """
    cure = "all ranks must read the same configuration and code"
    check_alike(mpi, partial(facts_of_configuration, config), cure, config.comm.timeout)


def facts_of_configuration(config: Config) -> dict[str, str | None]:
    facts = {key: f"{value}" for key, value in flattened(config.model_dump(exclude={"data": {"dir"}}))}
    for table, key in OF_FILES:  # compare only the name of the file, because the file's folder may differ between hosts
        if f"{table}.{key}" in facts:
            facts[f"{table}.{key}"] = facts[f"{table}.{key}"].rpartition("/")[2]
    return {"the version of grsgd": __version__} | facts | digests_of(config)


def check_data(mpi, config: Config, dataset: Dataset):
    """Raise SetupError on all ranks if the ranks' data sets differ in length, shape, labels or digest."""
    cure = f"data.name = {config.data.name!r}: all ranks must have the same data, in the same order"
    with in_own_code(config):
        check_alike(mpi, partial(facts_of_data, dataset), cure, config.comm.timeout)


def facts_of_data(dataset: Dataset) -> dict[str, object]:
    facts = {"the shape of a sample": dataset.shape}
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        facts[f"the number of {what} samples"] = len(split)
        if dataset.targets == CLASSES:
            facts[f"the digest of the {what} labels"] = digest_of(split.labels)
        facts[f"the digest of the {what} samples"] = getattr(split, "digest", type(None))()
    return facts | {"the number of classes or values": dataset.classes}


def check_model(mpi, config: Config, model):
    """Raise SetupError on all ranks if the ranks' models do not have the same parameters and buffers."""
    cure = f"model.name = {config.model.name!r}: all ranks must make the same model"
    check_alike(mpi, partial(facts_of_model, model), cure, config.comm.timeout)


def facts_of_model(model) -> dict[str, object]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "the number of parameters": sum(p.numel() for p in model.parameters()),
        "the digest of the names and shapes of parameters and buffers": digest_of(
            [(name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for name, tensor in tensors]
        ),
    }
