"""Content of one rank's checkpoint files in a run of ``grsgd train``, for `CheckpointWriter`."""

from collections.abc import Callable, Sequence

from grsgd.config import Config
from grsgd.config.sources import digests_of
from grsgd.errors import ConfigError
from grsgd.training import checkpoint_file
from grsgd.training.curve_file import CurveFile
from grsgd.training.rank_state import digests_of_frozen, state_of, state_of_optimizer
from grsgd.training.trainer import Trainer


class RunContent:
    """Content of one rank's checkpoint files in a run of ``grsgd train`` with the configuration ``config``."""

    def __init__(self, config: Config):
        self.config = config.toml()
        """Configuration as TOML text, which each checkpoint file stores besides the rank's state."""
        self.code = digests_of(config)
        """Digests of the files outside this package that the configuration uses."""

    def attach(self, trainer: Trainer):
        """Store the state of ``trainer`` in all checkpoint files that are written from now on. Raises ConfigError if
        the state of the trainer's optimizer cannot be written to a file."""
        self.trainer = trainer
        try:
            checkpoint_file.check({"optimizer": state_of_optimizer(trainer.optimizer.optimizer)})
        except (TypeError, ValueError) as error:
            name = trainer.config.optimizer.name
            raise ConfigError(
                f"--checkpoint: optimizer {name}: {error}: keep numbers, text, lists or tensors"
            ) from None
        self._frozen = digests_of_frozen(trainer.replica)
        trainer.snapshots.share()  # the writing thread reads snapshots while the trainer takes new ones

    def copied(self, copied: Callable, members: Sequence[int] | None) -> dict:
        """Return a copy of the trainer's state that is made between two steps; `state_of` describes the arguments."""
        return state_of(self.trainer, self._frozen, copied, members)

    def complete(self, state: dict, curve: CurveFile, id: str):
        """Append new snapshots to the file ``curve``, and add the digests of all snapshots and of the user's code to
        ``state``, the copy of a rank's state. The thread that writes checkpoints calls this method.

        ``id`` is the checkpoint's id. Raises OSError if the file of snapshots cannot be written.
        """
        count = 1 + max(state["curve"]["numbers"], default=-1)
        curve.write(self.trainer.snapshots, count, id)
        state["code"] = self.code
        state["curve"] |= {"name": curve.name, "digests": curve.digests[:count]}
