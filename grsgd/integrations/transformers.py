"""Trainer of Hugging Face Transformers which trains with an algorithm of grsgd, on the ranks of an MPI job.

    from grsgd.integrations.transformers import GrsgdTrainer

    trainer = GrsgdTrainer(model, arguments, train_dataset=data, algorithm="dpsgd", options={"topology": "ring"})
    trainer.train()

Import this module before making ``TrainingArguments``. The import starts MPI, and makes MPI's ranks the processes that
Transformers finds. Without an early import, Transformers starts a process group of its own, or finds only one process.
"""

import os
from contextlib import nullcontext

import torch

from grsgd.errors import ConfigError
from grsgd.integrations import algorithms, rank_files
from grsgd.integrations.libraries import needed
from grsgd.integrations.refusals import refused_alike
from grsgd.own_loop.distribute import algorithm_of

with needed("transformers"):
    from transformers import Trainer, TrainingArguments
    from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
    from transformers.utils import logging

    from grsgd.integrations.accelerate import GrsgdAccelerator

IN_BACKWARD = "lomo", "adalomo", "layerwise"
"""Parts of the names of optimizers that change parameters during the backward pass, and cannot be distributed."""
logger = logging.get_logger(__name__)


class GrsgdTrainer(Trainer):
    """Trainer that trains the model on all ranks with ``algorithm``. The optimizer comes from `grsgd.distribute`.

    Start the script with ``grsgd run -n 4 script.py``, ``mpiexec`` or ``srun``. Each rank is one process and uses one
    device. The Trainer divides batches among ranks, as for DDP. All ranks start from rank 0's model. During training,
    the Trainer evaluates and saves the average of all ranks' models.

    Parameters
    ----------
    arguments, named
        Arguments of ``Trainer``.
    algorithm
        Name of an algorithm that ``grsgd algorithms`` lists, or ``FILE.py:CLASS``.
    options
        Options of the algorithm, and of `grsgd.distribute`: ``seed``, ``timeout``, ``progress_mode``, ``transfer``.

    Raises ConfigError for the arguments that `check_arguments` refuses, and for algorithms that decide which rank
    computes which gradient. `train` raises the errors of `grsgd.distribute`. With an algorithm that sends models, the
    argument ``average_tokens_across_devices`` is set to False, so each rank only counts the tokens of its own batch.
    """

    accelerator: GrsgdAccelerator

    @refused_alike()
    def __init__(self, *arguments, algorithm: str = "ring_allreduce", options: dict | None = None, **named):
        algorithms.check(algorithm)
        self.algorithm, self.options = algorithm, options or {}
        super().__init__(*arguments, **named)
        if len(set((getattr(self.model, "hf_device_map", None) or {}).values())) > 1:
            raise ConfigError("a model on several devices (device_map): grsgd keeps a whole model per rank")

    def create_accelerator_and_postprocess(self):
        """Create the Trainer's accelerator, and make it train with the algorithm of grsgd."""
        check_arguments(self.args)
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = GrsgdAccelerator
        self.accelerator.end_call = "reaching the end of trainer.train()"
        self.accelerator.train_by(self.algorithm, self.options)
        if not algorithm_of(self.algorithm).traits.sends_gradients:
            self.args.average_tokens_across_devices = False  # True would make ranks wait in every step

    @refused_alike()
    def hyperparameter_search(self, *arguments, **named):
        raise ConfigError("hyperparameter_search() with grsgd: start a job per trial: see docs/how-to/studies.md")

    def _averaged(self):
        """Return a context in which the model is the average of all ranks' models. All ranks must enter the context."""
        average = self.accelerator.average
        models_differ = self.args.world_size > 1 and self.accelerator.distributed and average.own is None
        return average.in_place() if models_differ else nullcontext()

    def _maybe_log_save_evaluate(self, *arguments, **named):
        """Log, evaluate and save as the Trainer does, but with the average of all ranks' models."""
        is_due = self.control.should_evaluate or self.control.should_save
        with self._averaged() if is_due else nullcontext():
            super()._maybe_log_save_evaluate(*arguments, **named)

    def evaluation_loop(self, *arguments, **named):
        """Evaluate the average of all ranks' models. All ranks must call this method."""
        with self._averaged():
            return super().evaluation_loop(*arguments, **named)

    def _finalize_training(self, *arguments, **named):
        """Make the models of all ranks equal, before the Trainer loads the best model and ends."""
        self.accelerator.finish()
        return super()._finalize_training(*arguments, **named)

    def _save_optimizer_and_scheduler(self, output_dir: str):
        """Write the state of each rank into the rank's own file. Rank 0 also writes the files that the Trainer
        writes."""
        states = rank_files.save(output_dir, self.accelerator.average, self.algorithm)
        if self.args.should_save:
            torch.save(states[0], os.path.join(output_dir, OPTIMIZER_NAME))
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None):
        """Load the files that `_save_optimizer_and_scheduler` has written, if the checkpoint has more than a model."""
        if checkpoint is None or not os.path.exists(os.path.join(checkpoint, OPTIMIZER_NAME)):
            return
        plain, schedule = (
            torch.load(os.path.join(checkpoint, name), map_location="cpu", weights_only=True)
            for name in (OPTIMIZER_NAME, SCHEDULER_NAME)
        )
        line = rank_files.load(checkpoint, self.accelerator.average, self.algorithm, [plain])
        self.lr_scheduler.load_state_dict(schedule)
        if line and self.args.should_log:
            logger.warning(line)


def check_arguments(arguments: TrainingArguments):
    """Raise ConfigError if ``arguments`` have a value with which the ranks cannot train by grsgd."""
    optim = str(getattr(arguments.optim, "value", arguments.optim))
    found = {
        "deepspeed": arguments.deepspeed,
        "fsdp": arguments.fsdp,
        "parallelism_config": arguments.parallelism_config,
        "fp16": arguments.fp16,
        "auto_find_batch_size": arguments.auto_find_batch_size,
        f"optim={optim!r}": any(part in optim.lower() for part in IN_BACKWARD),
    }
    remedies = {"fp16": "use bf16", "auto_find_batch_size": "set per_device_train_batch_size"}
    for name, value in found.items():
        if value:
            raise ConfigError(f"TrainingArguments({name}) with grsgd: {remedies.get(name, 'leave it out')}")
