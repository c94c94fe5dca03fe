"""Files in a checkpoint's folder, one file per rank, with the state that differs between ranks."""

import os
from pathlib import Path

import torch

from grsgd.integrations import collective
from grsgd.integrations.averages import AverageInPlace, copy_into
from grsgd.integrations.on_mpi_ranks import PLAIN, state_at_rest
from grsgd.own_loop.ranks import world


def path_of(folder: str | os.PathLike) -> Path:
    """Return the path of this rank's file in ``folder``, the folder of a checkpoint."""
    return Path(folder) / f"grsgd_{world().rank}.pt"


def save(folder: str | os.PathLike, average: AverageInPlace, algorithm: str) -> list[dict]:
    """Write this rank's file, and return the states of the optimizers without the entries of grsgd. All ranks must call
    this function.

    The file has the algorithm's state. If the ranks' models differ, the file also has the model and the states of the
    optimizers. If the models are equal on all ranks, the file has only the buffers, and the returned states are correct
    for all ranks.
    """
    states = [state_at_rest(optimizer) for optimizer in average.distributed]
    plain = [{key: state[key] for key in PLAIN} for state in states]
    tensors = average.own if average.own is not None else average.tensors()
    if all(optimizer.algorithm.traits.equal_models for optimizer in average.distributed):
        tensors = tensors[sum(len(list(optimizer.model.parameters())) for optimizer in average.distributed) :]
        states = [{key: value for key, value in state.items() if key not in PLAIN} for state in states]
    kept = {"algorithm": algorithm, "ranks": world().size, "optimizers": states}
    path = path_of(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(kept | {"tensors": [tensor.detach().cpu().clone() for tensor in tensors]}, path)  # no views
    collective.barrier("writing a checkpoint")
    return plain


def load(folder: str | os.PathLike, average: AverageInPlace, algorithm: str, plain: list[dict]) -> str | None:
    """Load this rank's file and the optimizers' states ``plain`` into the models and optimizers. All ranks must call
    this function.

    If a rank's file is missing, or is of another algorithm or another number of ranks, all ranks load only ``plain``,
    and keep their present models. Return a warning if all ranks load only ``plain``, and None if all ranks have found
    their files.
    """
    path = path_of(folder)
    kept = torch.load(path, map_location="cpu", weights_only=True) if path.exists() else {}
    found = kept.get("algorithm"), kept.get("ranks")
    of_ranks = collective.all_gather_objects(found)
    wanted = algorithm, world().size
    for number, optimizer in enumerate(average.distributed):
        if of_ranks == [wanted] * world().size:
            optimizer.load_state_dict(plain[number] | kept["optimizers"][number])
        else:
            optimizer.optimizer.load_state_dict(plain[number])
    if of_ranks == [wanted] * world().size:
        if kept["tensors"]:  # these are all tensors, or only the last tensors, the buffers
            copy_into(average.tensors()[-len(kept["tensors"]) :], kept["tensors"])
        return None
    name, ranks = next(each for each in of_ranks if each != wanted)
    other = f"is of {name} on {ranks} ranks" if name else "lacks files of ranks"
    return (
        f"the checkpoint {folder} {other}, this job trains with {algorithm} on {world().size}: all ranks begin with "
        f"the "
        "averaged model of the checkpoint, and the algorithm begins anew"
    )
