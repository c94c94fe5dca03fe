"""State of a rank for a checkpoint. The state contains all values on which the rank's next steps and the content of the
run file depend.

The state of a rank is a tree of dicts. The leaves of the tree are arrays and values that JSON can hold. No array in the
state shares memory with the model or the optimizer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch

from grsgd.models.digests import digests
from grsgd.models.flat import host_tensor
from grsgd.models.replica import Replica
from grsgd.models.values import array_of, fill, value_of
from grsgd.training.snapshots import Moment
from grsgd.training.trainer import Trainer


def state_of(
    trainer: Trainer,
    frozen: np.ndarray | None = None,
    copied: Callable = np.ndarray.copy,
    members: Sequence[int] | None = None,
) -> dict:
    """Return the state of the rank of ``trainer`` between two training steps.

    `state_of_loop` describes the arguments.
    """
    curve, present = trainer.snapshots, trainer.algorithm.comm.members if members is None else members
    return state_of_loop(trainer, frozen, copied, members) | {
        "totals": asdict(trainer.totals),
        "losses": {str(block): list(losses) for block, losses in trainer.computing.losses.items()},
        "traffic": trainer.comm.traffic.state(present),
        "staleness": [[int(age), int(count)] for age, count in trainer.algorithm.staleness.items()],
        "curve": {
            "moments": [moment_to_json(moment) for moment in curve.moments],
            "numbers": list(curve.numbers),
            "weights": list(curve.weights),
            "early": curve.early,
            "marks": trainer.progress.marks.state(),
        },
    }


def state_of_loop(
    loop,
    frozen: np.ndarray | None = None,
    copied: Callable = np.ndarray.copy,
    members: Sequence[int] | None = None,
) -> dict:
    """Return the values of a rank's state that every training loop has. ``loop`` is a `Trainer`, or the
    `grsgd.own_loop.survival.SurvivingLoop` of a user's own training loop.

    ``frozen`` has the digests of all frozen parameters before training (`digests_of_frozen`). The state omits frozen
    parameters whose digests still equal the digests in ``frozen``. If ``frozen`` is None, the state has all frozen
    parameters. The function ``copied(array)`` copies an array, by default to new memory.

    If messages of the algorithm may be under way, ``members`` are the ranks that take part in the checkpoint. If
    ``members`` is given, the state has the model that `Algorithm.snapshot` returns, which activities in the background
    do not change. If ``members`` is None, no message is under way, and all members of the algorithm's communicator take
    part in the checkpoint.
    """
    replica, progress = loop.replica, loop.progress
    is_at_rest = members is None
    members = loop.algorithm.comm.members if is_at_rest else members  # excludes ranks without a process
    parameters, buffers = (replica.params, replica.buffers) if is_at_rest else loop.algorithm.snapshot()
    return {
        "model": {
            "parameters": array_of(parameters, copied),
            "buffers": array_of(buffers, copied),
            "buffers_at_start": array_of(replica.buffers_at_start, copied),
            **state_outside(replica, frozen, copied),
        },
        "optimizer": state_of_optimizer(loop.optimizer.optimizer, copied),
        "algorithm": {name: value_of(value, copied) for name, value in loop.algorithm.state().items()},
        "streams": state_of_streams(loop),
        "progress": progress.state(members)
        | {"elapsed": progress.elapsed(), "passed": progress.marks.passed, "batches": loop.recovery.position},
        "weight": loop.algorithm.weight,
        "result": result_of(loop, copied) if is_at_rest else {},
    }


def restore(trainer: Trainer, state: dict, samples: int, seconds: float):
    """Set model, optimizer, algorithm and progress of ``trainer`` to ``state``, a result of `state_of`. The rank's
    algorithm must have started, and the rank must not have taken a step yet.

    ``samples`` and ``seconds`` are the largest progress of the run that any rank has recorded at the checkpoint.
    All ranks must pass the same ``samples`` and ``seconds``.
    """
    restore_loop(trainer, state)
    trainer.algorithm.staleness.update(Counter(dict(state["staleness"])))
    for name, value in state["totals"].items():
        setattr(trainer.totals, name, value)
    # If ranks have died, this rank may now have other blocks of samples than in the checkpoint.
    blocks = trainer.gradients.weights if trainer.gradients is not None else {}
    trainer.computing.losses = {int(block): each for block, each in state["losses"].items() if int(block) in blocks}
    trainer.comm.traffic.restore(state["traffic"])
    curve = trainer.snapshots
    curve.moments = [moment_from_json(moment) for moment in state["curve"]["moments"]]
    curve.numbers, curve.weights = list(state["curve"]["numbers"]), list(state["curve"]["weights"])
    marks = state["curve"]["marks"]
    curve.early = trainer.progress.marks.go_on(marks, samples, seconds, state["curve"]["early"])
    batches = state["progress"].get("batches", trainer.totals.steps)  # checkpoints of old versions lack "batches"
    trainer.computing.go_on_from(batches, trainer.algorithm)
    restore_streams(trainer, state["streams"])  # is called last, because the lines above draw random numbers


def restore_loop(loop, state: dict):
    """Set the training loop ``loop`` to ``state``, a result of `state_of_loop`, except the states of random
    generators."""
    replica, model = loop.replica, state["model"]
    fill(replica.params, model["parameters"])
    fill(replica.buffers, model["buffers"])
    fill(replica.buffers_at_start, model["buffers_at_start"])
    restore_outside(replica, model)
    restore_optimizer(loop.optimizer.optimizer, state["optimizer"])
    if missing := loop.algorithm.state().keys() - state["algorithm"].keys():
        raise KeyError(f"{', '.join(sorted(missing))} of {loop.algorithm.name}")
    loop.algorithm.restore(state["algorithm"])
    progress = {name: value for name, value in state["progress"].items() if name != "batches"}
    loop.progress.marks.passed = progress.pop("passed")
    loop.progress.elapsed_before = progress.pop("elapsed")
    loop.progress.restore(progress)


# ---- parts


def digests_of_frozen(replica: Replica) -> np.ndarray:
    """Return the digests of the frozen parameters of a rank's model. The frozen parameters are the first tensors that
    `Replica.outside` returns."""
    outside = replica.outside()
    return digests(outside[: len(outside) - len(replica.outside(with_frozen=False))])


def state_outside(replica: Replica, frozen: np.ndarray | None, copied: Callable = np.ndarray.copy) -> dict:
    """Return a dict with the model's tensors outside the replica's flat arrays, by the number of the tensor. The dict
    has only the digests of frozen parameters that have not changed since the start of training."""
    now = () if frozen is None else digests_of_frozen(replica)
    same = {str(number): int(digest) for number, digest in enumerate(now) if digest == frozen[number]}
    numbered = ((str(number), tensor) for number, tensor in enumerate(replica.outside()))
    others = {number: array_of(tensor, copied) for number, tensor in numbered if number not in same}
    return {"others": others, "digests": same}


def restore_outside(replica: Replica, model: dict):
    """Set the model's tensors outside the replica's flat arrays to the values in ``model``. Raises ValueError if
    ``model`` has only the digest of a frozen parameter, and the parameter now has another digest."""
    kept = model.get("digests", {})  # checkpoints of old versions have other digests, which are ignored
    now = digests_of_frozen(replica) if kept else ()
    for number, tensor in enumerate(replica.outside()):
        if str(number) in model["others"]:
            fill(tensor, model["others"][str(number)])
        elif str(number) in kept and now[number] != kept[str(number)]:
            raise ValueError(f"frozen parameter {number} has changed since the checkpoint was taken")


def result_of(loop, copied: Callable) -> dict:
    """Return the parameters that this rank contributes to the average over all ranks, if they differ from the replica's
    parameters. Return an empty dict if this rank contributes the replica's parameters."""
    parameters, _ = loop.algorithm.snapshot()
    is_own = torch.equal(parameters, loop.replica.params.tensor)
    return {} if is_own else {"parameters": array_of(parameters, copied)}


def state_of_optimizer(optimizer: torch.optim.Optimizer, copied: Callable = np.ndarray.copy) -> dict:
    """Return a tree with the optimizer's state of each parameter, by the parameter's number, and the optimizer's
    parameter groups."""
    whole = optimizer.state_dict()
    remembered = {
        str(number): {name: value_of(value, copied) for name, value in of_one.items()}
        for number, of_one in whole["state"].items()
    }
    groups = {
        str(number): {name: value_of(value) for name, value in group.items()}
        for number, group in enumerate(whole["param_groups"])
    }
    return {"remembered": remembered, "groups": groups}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict):
    remembered = {int(number): with_tensors(of_one) for number, of_one in state["remembered"].items()}
    groups = [with_tensors(state["groups"][str(number)]) for number in range(len(optimizer.param_groups))]
    optimizer.load_state_dict({"state": remembered, "param_groups": groups})


def with_tensors(values: dict) -> dict:
    return {name: host_tensor(value) if isinstance(value, np.ndarray) else value for name, value in values.items()}


def state_of_streams(loop) -> dict:
    """Return the states of the algorithm's random generator and of torch's generators, which models use."""
    streams = {"algorithm": loop.algorithm.rng.bit_generator.state, "torch": torch.get_rng_state().numpy().copy()}
    if loop.replica.device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state(loop.replica.device).numpy().copy()
    return streams


def restore_streams(loop, streams: dict):
    loop.algorithm.rng.bit_generator.state = streams["algorithm"]
    torch.set_rng_state(torch.from_numpy(streams["torch"]))
    if "cuda" in streams:
        torch.cuda.set_rng_state(torch.from_numpy(streams["cuda"]), loop.replica.device)


def moment_to_json(moment: Moment) -> list:
    losses = [[block, *loss] for block, loss in moment.train_loss.items()]
    return [moment.time, moment.step, moment.samples, losses]


def moment_from_json(content: list) -> Moment:
    time, step, samples, losses = content
    return Moment(time, step, samples, {block: (loss, weight) for block, loss, weight in losses})
