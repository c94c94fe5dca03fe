"""Training loops of several libraries, each for three ways to train: a rank alone, DDP over gloo, and grsgd.

Every loop is a function of three arguments: a function that returns a new model, the way to train (``"alone"``,
``"DDP"``, ``"grsgd"``), and a data loader. A loop ends when its data loader has no more batches.
"""

import tempfile
from functools import partial, partialmethod

import lightning
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric, strategies
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import grsgd
from grsgd.integrations.accelerate import GrsgdAccelerator
from grsgd.integrations.fabric import GrsgdFabricStrategy
from grsgd.integrations.lightning import GrsgdStrategy
from grsgd.integrations.transformers import GrsgdTrainer

ALGORITHM = "ring_allreduce"
"""Name of the grsgd algorithm that computes the same mean gradients as DDP."""


def gpt2(width: int, layers: int, tokens: int, length: int) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": tokens, "n_positions": length, "n_embd": width, "n_layer": layers, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, use_cache=False))


def adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 1e-3, fused=True)


def plain(new_model, way: str, loader):
    module = new_model()
    optimizer = adamw(module)
    if way == "grsgd":
        optimizer = grsgd.distribute(module, optimizer, ALGORITHM)
    called = DistributedDataParallel(module) if way == "DDP" else module
    for batch in loader:
        optimizer.zero_grad()
        called(**batch).loss.backward()
        optimizer.step()
    if way == "grsgd":
        optimizer.finish()


class Language(lightning.LightningModule):
    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner

    def training_step(self, batch, number):
        return self.inner(**batch).loss

    def configure_optimizers(self):
        return adamw(self)


def by_lightning(new_model, way: str, loader):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1}
    strategy = {
        "alone": SingleDeviceStrategy,
        "DDP": partial(DDPStrategy, process_group_backend="gloo"),
        "grsgd": partial(GrsgdStrategy, ALGORITHM),
    }[way]()
    devices = grsgd.size() if way == "DDP" else 1
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, enable_checkpointing=False, **quiet
    )
    if way == "grsgd":  # GrsgdStrategy alone has no process group, and then Lightning makes no such broadcast
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trainer.fit(Language(new_model()), loader)


def by_fabric(new_model, way: str, loader):
    strategy = {
        "alone": strategies.SingleDeviceStrategy,
        "DDP": partial(strategies.DDPStrategy, process_group_backend="gloo"),
        "grsgd": partial(GrsgdFabricStrategy, ALGORITHM),
    }[way]()
    fabric = Fabric(accelerator="cpu", devices=grsgd.size() if way == "DDP" else 1, strategy=strategy)
    fabric.launch()
    inner = new_model()
    module, optimizer = fabric.setup(inner, adamw(inner))
    for batch in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
        optimizer.zero_grad()
        fabric.backward(module(**batch).loss)
        optimizer.step()
    if way == "grsgd":
        strategy.finish()


class Alone(Accelerator):
    """Subclass of Accelerator that does not wrap the model in DDP."""

    prepare_model = partialmethod(Accelerator.prepare_model, evaluation_mode=True)


def by_accelerate(new_model, way: str, loader):
    kind = {"alone": Alone, "DDP": Accelerator, "grsgd": partial(GrsgdAccelerator, ALGORITHM)}[way]
    accelerator = kind(accelerator={"cpu": True}) if way == "grsgd" else kind(cpu=True)
    module = new_model()
    module, optimizer = accelerator.prepare(module, adamw(module))
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(module(**batch).loss)
        optimizer.step()
    if way == "grsgd":
        accelerator.finish()


class TrainerAlone(Trainer):
    """Subclass of Trainer that does not wrap the model in DDP."""

    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)


class OneEpoch(TrainerCallback):
    """Callback that ends the training when the data loader ends.

    Without this callback, the Trainer would start a data loader of unknown length anew.
    """

    def on_epoch_end(self, args, state, control, **named):
        control.should_training_stop = True


def by_transformers(new_model, way: str, loader):
    kind = {"alone": TrainerAlone, "DDP": Trainer, "grsgd": partial(GrsgdTrainer, algorithm=ALGORITHM)}[way]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=10**6,
            max_grad_norm=0,
            lr_scheduler_type="constant",
            average_tokens_across_devices=False,
            ddp_find_unused_parameters=False,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        inner = new_model()
        trainer = kind(
            inner, arguments, train_dataset=loader.dataset, optimizers=(adamw(inner), None), callbacks=[OneEpoch()]
        )
        trainer.get_train_dataloader = lambda: loader
        trainer.train()


BY_LIBRARY = {"Lightning": by_lightning, "Fabric": by_fabric, "Accelerate": by_accelerate, "Trainer": by_transformers}
