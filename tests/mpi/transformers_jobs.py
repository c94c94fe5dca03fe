"""Trainings of Transformers and Accelerate on the ranks of a job: by grsgd, by their own DDP, and by a plain loop.

Each function named on the command line is run, and prints its name if it comes to its end.
"""

import os
import socket
from pathlib import Path

import torch
from mpi4py import MPI
from named import run_named
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

import grsgd
from grsgd.errors import UsageError

COMM = MPI.COMM_WORLD
RANKS = COMM.size
SMALL = 1e-6
"""Largest difference of float32 parameters that counts as equal."""


class Text(Dataset):
    """Random text; some labels do not count, so that the batches of ranks have unequal numbers of labels."""

    def __init__(self, samples: int, seed: int):
        draws = torch.Generator().manual_seed(seed)
        self.text = torch.randint(0, 31, (samples, 12), generator=draws)
        self.labels = torch.where(torch.rand(self.text.shape, generator=draws) < 0.3, -100, self.text)

    def __len__(self):
        return len(self.text)

    def __getitem__(self, number):
        return {"input_ids": self.text[number], "labels": self.labels[number]}


def model() -> nn.Module:
    set_seed(3)
    sizes = {"vocab_size": 31, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"))


def arguments(**options) -> TrainingArguments:
    usual = {"use_cpu": True, "per_device_train_batch_size": 4, "num_train_epochs": 2, "max_grad_norm": 0.5}
    usual |= {"report_to": [], "disable_tqdm": True, "logging_steps": 3, "learning_rate": 0.01, "adam_epsilon": 1e-4}
    usual |= {"save_strategy": "no", "dataloader_pin_memory": False, "output_dir": "out", "weight_decay": 0.1}
    return TrainingArguments(**usual | options)


def fit(algorithm: str, path=None, callbacks=(), distribute=None, **options) -> Trainer:
    """Return the trainer after a training by grsgd."""
    from grsgd.integrations.transformers import GrsgdTrainer

    data = {"train_dataset": Text(50, 1), "eval_dataset": Text(21, 2), "callbacks": list(callbacks)}
    done = GrsgdTrainer(model(), arguments(**options), **data, algorithm=algorithm, options=distribute)
    done.train(resume_from_checkpoint=path)
    return done


def difference(module: nn.Module, other: nn.Module) -> float:
    return max((a - b).abs().max().item() for a, b in zip(module.parameters(), other.parameters(), strict=True))


def is_on_all(module: nn.Module) -> bool:
    """Return whether all ranks have one model."""
    digest = torch.cat([value.double().flatten() for value in module.state_dict().values()]).numpy().tobytes()
    return len(set(COMM.allgather(digest))) == 1


ACCUMULATED = {"gradient_accumulation_steps": 2}


def equals_ddp():
    """Compare with the Trainer alone, which starts gloo and DDP when it sees MPI's variables."""
    if COMM.rank == 0:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(COMM.bcast(port if COMM.rank == 0 else None))}
    theirs, losses = {}, {}
    for bf16 in (False, True):
        options = ACCUMULATED | {"bf16": bf16, "ddp_find_unused_parameters": False}
        theirs[bf16] = Trainer(model(), arguments(**options), train_dataset=Text(50, 1), eval_dataset=Text(21, 2))
        theirs[bf16].train()
        losses[bf16] = theirs[bf16].evaluate()["eval_loss"]
    assert isinstance(theirs[False].model_wrapped, nn.parallel.DistributedDataParallel), "the trap"
    twice = model()
    optimizer = grsgd.distribute(twice, torch.optim.SGD(twice.parameters(), 0.1), "dpsgd")
    wrapped = type(theirs[False].model_wrapped)(twice)
    for step in range(2):
        wrapped(**Text(50, 1)[range(step, 50, RANKS + COMM.rank)]).loss.backward()
        optimizer.step()
    assert is_on_all(twice), "averaged twice: models of dpsgd differ between ranks"
    optimizer.close()
    torch.distributed.destroy_process_group()
    for bf16, trained in theirs.items():
        ours = fit("ring_allreduce", **ACCUMULATED, bf16=bf16)
        assert type(ours.model_wrapped) is GPT2LMHeadModel and is_on_all(ours.model)
        assert difference(ours.model, trained.model) <= (1e-3 if bf16 else SMALL), difference(ours.model, trained.model)
        for own, other in zip(ours.state.log_history, trained.state.log_history, strict=False):
            assert all(abs(own[name] - other[name]) < 1e-3 for name in ("loss", "grad_norm") if name in other), other
        assert abs(ours.evaluate()["eval_loss"] - losses[bf16]) < 1e-3


def by_a_plain_loop(algorithm: str, **options) -> nn.Module:
    """Return the model of a loop over the Trainer's batches, with the Trainer's optimizer and schedule."""
    batches = fit("ring_allreduce", max_steps=1)
    module = model()
    optimizer = Trainer(module, arguments()).create_optimizer()
    optimizer = grsgd.distribute(module, optimizer, algorithm, **options)
    set_seed(42)
    loader = batches.get_train_dataloader()
    schedule = get_scheduler("linear", optimizer, 0, 2 * len(loader))
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            module.train()
            module(**batch, num_items_in_batch=batch["labels"][:, 1:].ne(-100).sum()).loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    optimizer.finish()
    return module


def equals_a_plain_loop():
    for algorithm, options in (("dpsgd", {}), ("diloco", {"H": 4})):
        ours = fit(algorithm, distribute=options, lr_scheduler_type="linear").model
        theirs = by_a_plain_loop(algorithm, **options)
        assert difference(ours, theirs) <= SMALL and is_on_all(ours), (algorithm, difference(ours, theirs))
    for algorithm in ("grsgd", "lasgd", "adpsgd"):  # their results depend on the times at which messages arrive
        often = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1}
        assert is_on_all(fit(algorithm, **often).model), algorithm


class Sees(TrainerCallback):
    """Callback that notes the model that is evaluated."""

    def __init__(self):
        self.models = []

    def on_evaluate(self, args, state, control, model=None, **named):
        self.models.append(model.transformer.wte.weight.detach().clone().numpy().tobytes())


def goes_on_from_a_checkpoint():
    for algorithm in ("ring_allreduce", "dpsgd"):
        options = {"save_strategy": "epoch", "eval_strategy": "epoch", "num_train_epochs": 3, "output_dir": algorithm}
        whole = fit(algorithm, **options)
        last = max(Path(algorithm).glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
        first = min(Path(algorithm).glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
        written = {path.name for path in last.iterdir()}
        assert {"model.safetensors", "optimizer.pt", "grsgd_0.pt", "grsgd_1.pt", "rng_state_1.pth"} <= written, written
        COMM.Barrier()
        sees = Sees()
        again = fit(algorithm, path=str(first), callbacks=[sees], **options | {"output_dir": f"{algorithm}-again"})
        assert difference(whole.model, again.model) == 0 and is_on_all(again.model), algorithm
        assert len(set(COMM.allgather(tuple(sees.models)))) == 1 and len(sees.models) == 2, "all evaluate the average"
        averaged = GPT2LMHeadModel.from_pretrained(last)
        assert difference(averaged, whole.model) <= (0 if algorithm == "ring_allreduce" else SMALL)
    other = fit("local_sgd", path=str(first), num_train_epochs=2, output_dir="other")
    assert is_on_all(other.model) and other.state.global_step == 2 * -(-13 // RANKS)
    best = fit("dpsgd", load_best_model_at_end=True, **options | {"output_dir": "best", "learning_rate": 1.0})
    assert difference(GPT2LMHeadModel.from_pretrained(best.state.best_model_checkpoint), best.model) == 0
    best.train()
    assert is_on_all(best.model), "a second training of the same trainer"


class SeesOneLoss(TrainerCallback):
    """Callback that demands the same loss of the evaluation on all ranks."""

    def on_evaluate(self, args, state, control, metrics=None, **named):
        assert len(set(COMM.allgather(metrics["eval_loss"]))) == 1


def stops_everywhere():
    stops = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "learning_rate": 1.0, "logging_steps": 1}
    each = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 12}
    done = fit("dpsgd", callbacks=[SeesOneLoss(), EarlyStoppingCallback(1)], output_dir="stops", **stops, **each)
    assert len(set(COMM.allgather(done.state.global_step))) == 1 and done.state.global_step < 12
    losses = [entry["loss"] for entry in done.state.log_history if "loss" in entry]
    assert len(set(COMM.allgather(tuple(losses)))) == 1, "the mean of all ranks is logged"


def trains_by_accelerate():
    from grsgd.integrations.accelerate import GrsgdAccelerator

    for algorithm in ("ring_allreduce", "dpsgd"):
        accelerator = GrsgdAccelerator(
            algorithm, accelerator={"cpu": True, "gradient_accumulation_steps": 2, "mixed_precision": "no"}
        )
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), 0.01)
        module, optimizer, loader = accelerator.prepare(module, optimizer, DataLoader(Text(50, 1), 4))
        assert len(loader) == -(-13 // RANKS)
        for batch in loader:
            with accelerator.accumulate(module):
                accelerator.backward(module(**batch).loss)
                accelerator.clip_grad_norm_(module.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        assert optimizer.optimizer.steps == -(-len(loader) // 2)
        assert accelerator.gather(torch.tensor(COMM.rank)).tolist() == list(range(RANKS))
        assert accelerator.reduce(torch.tensor(float(COMM.rank)), "mean") == (RANKS - 1) / 2
        assert is_on_all(module) == (algorithm == "ring_allreduce")
        accelerator.save_model(module, algorithm)
        if COMM.rank == 0:
            saved = load_file(Path(algorithm, "model.safetensors"))
            names = dict(module.named_parameters()).keys()  # each tied parameter has one name
            assert all(torch.equal(saved[name], module.get_parameter(name)) for name in names)
        accelerator.finish()
        assert is_on_all(module), algorithm


def refusal(call) -> str:
    """Return the message with which ``call`` is refused."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return "nothing"


def refuses_what_cannot_work():
    from accelerate.local_sgd import LocalSGD
    from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig

    from grsgd.integrations import collective
    from grsgd.integrations.accelerate import GrsgdAccelerator

    assert "auto_find_batch_size" in refusal(lambda: fit("dpsgd", auto_find_batch_size=True))
    assert "fp16" in refusal(lambda: fit("dpsgd", fp16=True))
    assert "decides which rank computes which gradient" in refusal(lambda: fit("cssgd"))
    assert "topologi" in refusal(lambda: fit("dpsgd", distribute={"topologi": "ring"}))
    divides = {"cpu": True, "fsdp_plugin": FullyShardedDataParallelPlugin(), "parallelism_config": ParallelismConfig()}
    divides |= dict.fromkeys(("deepspeed_plugin", "megatron_lm_plugin", "torch_tp_plugin"), object())
    for name in divides.keys() - {"cpu"}:
        said = refusal(lambda name=name: GrsgdAccelerator(accelerator={"cpu": True, name: divides[name]}))
        assert said == f"Accelerate with {name}: grsgd keeps a whole model per rank: leave {name} out", said
    alone = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    assert GrsgdAccelerator(accelerator={"cpu": True}, timeout=77.0) and collective.Limit.seconds == 77.0
    accelerator = GrsgdAccelerator(accelerator={"cpu": True})
    assert collective.Limit.seconds == collective.SECONDS
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    assert refusal(lambda: fit("dpsgd")).startswith("Accelerate with ACCELERATE_USE_FSDP: grsgd keeps a whole model")
    del os.environ["ACCELERATE_USE_FSDP"]
    said = refusal(lambda: GrsgdAccelerator("dpsgd", cpu=True))
    assert said == "cpu: is an argument of Accelerator: write accelerator={'cpu': True}", said
    said = refusal(lambda: accelerator.backward(accelerator.prepare_model(nn.Linear(1, 1))(torch.ones(1, 1)).sum()))
    assert said == "each rank trains alone: give prepare() the model with its optimizers in one call", said
    module = nn.Linear(2, 1)
    module, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), 0.1))
    assert "use the algorithm 'local_sgd'" in refusal(LocalSGD(accelerator, module, 2).__enter__)
    optimizer.optimizer.close()
    accelerator.finish()
    assert not hasattr(module, "no_sync")
    assert "without its model" in refusal(lambda: accelerator.prepare(alone))
    assert "each rank has a state of its own" in refusal(lambda: accelerator.save_state("kept"))
    assert "each rank has a state of its own" in refusal(lambda: accelerator.load_state("kept"))


def refuses_to_save_during_a_training():
    from grsgd.integrations.accelerate import GrsgdAccelerator

    accelerator = GrsgdAccelerator("lasgd", accelerator={"cpu": True}, progress_mode="thread")
    module = model()
    module, optimizer, loader = accelerator.prepare(
        module, torch.optim.SGD(module.parameters(), 0.1), DataLoader(Text(50, 1), 4)
    )
    for batch in loader:
        accelerator.backward(module(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state("kept")


def fails_on_one_rank():
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            if COMM.rank == 1 and state.global_step == 3:
                raise ValueError("a fault of mine")

    fit("dpsgd", callbacks=[Fails()])


if __name__ == "__main__":
    run_named(globals())
