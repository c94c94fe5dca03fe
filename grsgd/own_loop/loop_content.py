"""Content of the checkpoint files of a loop over `grsgd.surviving`, for the writer of the files."""

from collections.abc import Callable, Sequence

import torch

from grsgd.algorithms.base import Algorithm
from grsgd.errors import ConfigError
from grsgd.job.resume import OWN_LOOP as KEY
from grsgd.own_loop.packed_state import packed, unpacked
from grsgd.own_loop.saved_record import KEY as RECORD
from grsgd.training import checkpoint_file
from grsgd.training.curve_file import CurveFile
from grsgd.training.rank_state import digests_of_frozen, state_of_loop, state_of_optimizer


class LoopContent:
    """Content of one rank's checkpoint files in a loop over `grsgd.surviving`."""

    def __init__(self, algorithm: Algorithm):
        self.config = f'{KEY} = "{algorithm.name}"\n'
        """Text that each checkpoint file contains in addition to the state. `grsgd train` refuses a file with this
        text."""

    def attach(self, loop):
        """Use the states of ``loop`` from now on."""
        self.loop = loop
        self._frozen = digests_of_frozen(loop.replica)

    def copied(self, copied: Callable, members: Sequence[int] | None) -> dict:
        """Return a copy of the loop's state between two iterations. `state_of_loop` describes the arguments."""
        loop = self.loop
        kept = {
            "objects": {name: each.state_dict() for name, each in loop.stateful.items()},
            "generators": {name: each.get_state() for name, each in loop.generators_given.items()},
            "record": loop.distributed.recorded.state().get(RECORD),
        }
        state = state_of_loop(loop, self._frozen, copied, members)
        options = loop.algorithm.options.model_dump(mode="json")
        names = {"algorithm": loop.algorithm.name, "optimizer": type(loop.distributed.optimizer).__name__}
        about = names | {"options": options, "kept": packed(kept)}
        return state | {KEY: about, "totals": {}, "code": {}, "curve": {"name": ""}}

    def complete(self, state: dict, curve: CurveFile, id: str):
        """Do nothing: a loop has no snapshots, so the state from `copied` is complete."""


def check_states(optimizer: torch.optim.Optimizer, objects: dict[str, object]):
    """Raise ConfigError if the state of the optimizer or of one of the user's ``objects`` cannot be written to a file
    and read back."""
    try:
        checkpoint_file.check({"optimizer": state_of_optimizer(optimizer)})
    except (TypeError, ValueError) as error:
        name = type(optimizer).__name__
        raise ConfigError(f"surviving(): checkpoints: {name}: {error}: keep numbers, text, lists or tensors") from None
    for name, each in objects.items():
        if isinstance(each, torch.Generator):
            continue
        try:
            unpacked(packed(each.state_dict()), is_safe=False)
        except Exception:  # state_dict() of a user's object may raise any error
            raise ConfigError(
                f"surviving(): checkpoints: state_dict() of {name} has values other than numbers, text, lists, "
                "dictionaries and tensors, which no checkpoint keeps"
            ) from None
