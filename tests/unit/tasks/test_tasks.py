"""Tasks: their losses and metrics are means over items, however these are spread over batches and ranks; and runs,
whose targets, curves and reports have the task's metric."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import grsgd
from grsgd import tasks
from grsgd.cli import main
from grsgd.config.sections import Gradient
from grsgd.data.map_style import dataset_of
from grsgd.data.text import TextSplit, dataset_of_text
from grsgd.errors import ConfigError, DataError
from grsgd.models import zoo
from grsgd.models.replica import Replica, to_device
from grsgd.models.text import angles, rotated
from grsgd.runs.columns import all_columns
from grsgd.runs.curves import quantities
from grsgd.runs.metric import ACCURACY, Metric, check_metric
from grsgd.runs.numbers import known_values
from grsgd.runs.series import Series
from grsgd.runs.several import by_experiment
from grsgd.training import evaluation
from grsgd.training.batch_gradient import BatchGradient
from grsgd.training.evaluation import metric_and_loss, score
from grsgd.training.gradients import Block, CommonBatch, OwnBatches

PADDING = -100


@pytest.fixture
def random():
    torch.manual_seed(0)
    return np.random.default_rng(0)


# ---- losses and metrics


def test_classification_is_cross_entropy_bit_for_bit():
    task = tasks.build("classification", {})
    outputs, labels = torch.randn(33, 7, requires_grad=True), torch.arange(33) % 7
    mean = task.total_loss(outputs, labels) / task.count(labels)
    gradients = [
        torch.autograd.grad(loss, outputs)[0] for loss in (nn.functional.cross_entropy(outputs, labels), mean)
    ]
    assert torch.equal(*gradients)
    assert task.total_score(outputs, labels) == int((outputs.argmax(1) == labels).sum()) and task.metric == ACCURACY


@pytest.mark.parametrize(
    ("options", "value"),
    [({}, 1 / math.log(2)), ({"bytes_per_token": 4.0}, 0.25 / math.log(2)), ({"metric": "perplexity"}, math.e)],
)
def test_a_language_model_of_one_nat_a_token(options, value):
    assert tasks.build("language_modelling", options).value(1.0) == pytest.approx(value)


def test_padding_is_not_counted():
    task, outputs = tasks.build("language_modelling", {}), torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, 3], [4, PADDING, PADDING]])
    each = nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=PADDING)
    assert task.count(targets) == 4 and torch.allclose(task.total_loss(outputs, targets), each.sum())


def test_regression_is_the_root_of_the_mean_square():
    task, outputs = tasks.build("regression", {"unit": "m"}), torch.tensor([[1.0], [2.0], [4.0]])
    targets = torch.tensor([1.0, 0.0, 0.0])
    assert task.value(task.total_score(outputs, targets) / task.count(targets)) == pytest.approx(math.sqrt(20 / 3))
    assert task.metric == Metric("rms_error", "m")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("language_modelling", {"metric": "bits"}, "metric = 'bits': allowed: 'bits_per_byte', 'perplexity'"),
        ("language_modelling", {"bytes_per_token": 0.0}, "bytes_per_token = 0: must be above 0"),
        ("language_modelling", {"bytes_per_token": "four"}, "task.bytes_per_token = 'four': expected a number"),
        ("language_modelling", {"tokens": 3}, "task.tokens: unknown key; allowed: name, metric, bytes_per_token"),
    ],
)
def test_wrong_options(name, options, words):
    with pytest.raises(ConfigError, match=words):
        tasks.build(name, options)


# ---- over batches and ranks


class Padded:
    """Sequences of different lengths, filled up with padding; a ``Split``."""

    def __init__(self, lengths, generator):
        self.x = torch.from_numpy(generator.integers(0, 5, (len(lengths), 6)))
        self.y = torch.from_numpy(generator.integers(0, 5, (len(lengths), 6)))
        for row, length in enumerate(lengths):
            self.y[row, length:] = PADDING
        self.labels = np.zeros(len(lengths), np.int64)

    def __len__(self):
        return len(self.labels)

    def batches(self, indices, **options):
        return ((self.x[index], self.y[index]) for index in indices)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_token_counts_alike_on_however_many_ranks(ranks, random):
    split, model = Padded([6, 1, 1, 2, 5, 6, 3, 1, 4], random), nn.Embedding(5, 5)
    task = tasks.build("language_modelling", {})
    logits, targets = model(split.x).double().flatten(0, 1), split.y.flatten()
    expected = nn.functional.cross_entropy(logits, targets, ignore_index=PADDING).item()
    value, loss = metric_and_loss(model, split, task, torch.device("cpu"), ranks)
    assert loss == pytest.approx(expected, rel=1e-12) and value == pytest.approx(expected / math.log(2), rel=1e-6)
    parts = sum(score(model, split, task, np.arange(9)[rank::ranks], torch.device("cpu")) for rank in range(ranks))
    assert parts[1] == 29 and task.value(parts[0] / parts[1]) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("block, most", [(4, 100), (16, 40), (700, 1)])
def test_long_texts_are_evaluated_few_at_a_time(block, most, random, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", 100)
    monkeypatch.setattr(evaluation, "OUTPUTS", 640 * 5)
    split, seen = TextSplit(random.integers(0, 5, 130 * block).astype(np.uint8), block), []
    task, model = tasks.build("language_modelling", {}), nn.Embedding(5, 5)
    model.register_forward_hook(lambda module, inputs, made: seen.append(len(made)))
    _, tokens = score(model, split, task, np.arange(len(split)), torch.device("cpu"))
    assert tokens == len(split) * block and max(seen) == most


def test_blocks_of_a_common_batch_add_up_to_its_gradient(random):
    split, task = TextSplit(random.integers(0, 5, 200).astype(np.uint8), 8), tasks.build("language_modelling", {})
    model = nn.Embedding(5, 5)

    def batches(begin, end):
        return split.batches(iter([np.arange(6)[begin:end]]))

    alone = Replica(model)
    gradient = BatchGradient(Gradient(), alone, task)
    OwnBatches(gradient, Block(0, 0, 6, batches(0, 6))).next_gradient()
    whole, parts = alone.grads.tensor.clone(), []
    for begin, end in ((0, 1), (1, 4), (4, 6)):
        common = CommonBatch(gradient, [Block(begin, begin, end, batches(begin, end))], 6, 0, lambda number: None)
        common.next_gradient()
        parts.append(alone.grads.tensor.clone())
    assert torch.allclose(sum(parts), whole, atol=1e-7)


# ---- metrics that are no mean


@pytest.fixture
def of_class_1():
    """The tasks of the document by their names."""
    text = (Path(__file__).parents[3] / "docs" / "how-to" / "tasks.md").read_text()
    exec(re.search(r"```python\n(import torch\nfrom torch import nn\n.*?)```", text, re.DOTALL)[1], found := {})
    return found


@pytest.mark.parametrize("ranks", [1, 3, 50])
def test_metrics_of_sums(of_class_1, random, ranks):
    x, y = torch.randn(40, 4), torch.arange(40) % 3 // 2
    model, split = nn.Linear(4, 2), dataset_of("mine", (TensorDataset(x, y),) * 2).test
    logits = model(x).detach()
    found = logits.argmax(1)
    precision, recall = (float(((found == 1) & (y == 1)).sum() / (part == 1).sum()) for part in (found, y))
    margin = logits[:, 1] - logits[:, 0]
    pairs = margin[y == 1][:, None] - margin[y == 0]
    expected = {"F1": 2 / (1 / precision + 1 / recall), "AUROC": float(((pairs > 0) + 0.5 * (pairs == 0)).mean())}
    for name, value in expected.items():
        task = of_class_1[name]()
        measured, _ = metric_and_loss(model, split, task, torch.device("cpu"), ranks)
        parts = sum(score(model, split, task, np.arange(40)[rank::ranks], torch.device("cpu")) for rank in range(ranks))
        assert type(measured) is float and measured == pytest.approx(value, abs=2e-3)
        assert task.metric_of(parts) == pytest.approx(measured, rel=1e-12)


def test_one_sum_for_a_value_of_sums():
    class Root(tasks.Task):
        def total_loss(self, outputs, targets):
            return (outputs - targets).square().sum()

        def value(self, sums, items):
            return (sums[0] / items).sqrt()

    totals = Root().totals(torch.tensor([[3.0], [4.0]]), torch.zeros(2, 1), 2)
    assert totals.tolist() == [25, 2] and Root().metric_of(totals) == pytest.approx(math.sqrt(12.5))


# ---- data


def test_text_is_cut_into_windows_that_follow_one_another():
    dataset = dataset_of_text("mine", bytes(range(100)), 7, "here")
    (x, y), *_ = dataset.train.batches(iter([np.array([0, 11])]))
    assert x.tolist() == [list(range(7)), list(range(77, 84))]
    assert y.tolist() == [list(range(1, 8)), list(range(78, 85))]
    assert (len(dataset.train), len(dataset.test), dataset.shape, dataset.classes) == (12, 1, (7,), 256)
    with pytest.raises(DataError, match="too short for windows of this length"):
        dataset_of_text("mine", bytes(range(100)), 10, "here")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.alpha=0.1", "data.alpha: the samples of text have no classes"),
        ("data.only_classes=2", "data.only_classes: the samples of text have no classes"),
        ("task={name='classification'}", "is for classes, and the targets of text are tokens: name another"),
        ("task={name='regression'}", "task.name = 'regression': is for numbers, and the targets of text are tokens"),
        ("data.file=3", "no "),
        ("data.file=short.txt", "block is 16: a text of 3 bytes is too short for windows of this length"),
    ],
)
def test_what_text_is_not_for(setting, words, tmp_path, capsys):
    (tmp_path / "input.txt").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "short.txt").write_bytes(b"abc")
    command = ["simulate", str(language(tmp_path)), "--ranks", "2", "--out", str(tmp_path / "a.h5")]
    target = ["--set", "train={steps=2}"] if "task" in setting else []
    assert main([*command, *target, "--set", setting]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_inputs_that_are_no_tokens_become_real_numbers():
    x, y = to_device(torch.ones(2, 3, dtype=torch.uint8), torch.ones(2), torch.device("cpu"), torch.float64)
    assert (x.dtype, y.dtype) == (torch.float64, torch.float64)
    x, y = to_device(torch.ones(2, 3, dtype=torch.int64), torch.ones(2, dtype=torch.int64), x.device, torch.float64)
    assert (x.dtype, y.dtype) == (torch.int64, torch.int64)


def test_targets_of_data_sets_of_ones_own():
    x = torch.randn(4, 3)
    for targets, classes, kind in (
        (torch.randn(4), 1, "numbers"),
        (torch.randn(4, 2), 2, "numbers"),
        (torch.tensor([[1, 8], [0, 0], [2, 2], [3, 3]]), 9, "tokens"),
        (torch.tensor([0, 1, 2, 2]), 3, "classes"),
    ):
        found = dataset_of("mine", (TensorDataset(x, targets), TensorDataset(x, targets)))
        assert (found.classes, found.targets) == (classes, kind)


# ---- the model


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_gpt_sees_no_later_token(positions, random):
    model = zoo.build("gpt", (12,), 16, layers=2, heads=2, width=8, positions=positions).eval()
    text = torch.from_numpy(random.integers(0, 16, (1, 12)))
    other = text.clone()
    other[0, 7:] = 15 - other[0, 7:]
    with torch.no_grad():
        one, two = model(text)[0], model(other)[0]
        shorter = model(text[:, :5])[0]
    assert torch.allclose(one[:7], two[:7], atol=1e-6) and not torch.allclose(one[7:], two[7:], atol=1e-3)
    assert torch.allclose(one[:5], shorter, atol=1e-6)


def test_rotary_positions_depend_on_the_distance_alone(random):
    """In one layer of attention without anything else about places, what a token sees is the same further on."""
    model = zoo.build("gpt", (16,), 8, layers=1, heads=2, width=8, positions="rotary").eval()
    text = torch.from_numpy(random.integers(0, 8, (1, 8)))
    twice = torch.cat([text, text], 1)
    query, key = torch.randn(1, 1, 16, 4), torch.randn(1, 1, 16, 4)
    turned = angles(16, 4)
    query[:, :, 1:], key[:, :, 1:] = query[:, :, :1], key[:, :, :1]
    products = (rotated(query, turned) @ rotated(key, turned).transpose(-1, -2))[0, 0]
    assert torch.allclose(products[1:, 1:], products[:-1, :-1], atol=1e-5) and not torch.allclose(
        products[3, 0], products[0, 0], atol=1e-3
    )
    assert model(twice).shape == (1, 16, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 7, "heads": 2}, "width is 7 with 2 heads, expected one part for each of the heads"),
        ({"width": 6, "heads": 2, "positions": "rotary"}, "expected an even number for each of the heads"),
        ({"positions": "none"}, "positions is none, expected learned or rotary"),
        ({"dropout": 1.0}, "dropout is 1, expected 0 to less than 1"),
    ],
)
def test_what_a_gpt_cannot_be(options, words):
    with pytest.raises(ValueError, match=words):
        zoo.build("gpt", (8,), 256, **options)


def test_models_of_text_and_of_images_are_not_mixed_up():
    with pytest.raises(ValueError, match=r"model gpt: reads text: the data have shape \(1, 8, 8\)"):
        zoo.build("gpt", (1, 8, 8), 10)
    with pytest.raises(ValueError, match=r"model mlp: image shape \(128,\)"):
        zoo.build("mlp", (128,), 256)


@pytest.mark.parametrize(("options", "millions"), [({}, 0.225), ({"layers": 6, "heads": 6, "width": 384}, 10.8)])
def test_the_sizes_that_are_told(options, millions):
    with torch.device("meta"):
        count = sum(p.numel() for p in zoo.build("gpt", (128,), 256, **options).parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.02)


# ---- runs


def language(folder, **train):
    """The configuration of a small language model on the text ``input.txt`` of a folder, as a file."""
    lines = [f"{key} = {value}" for key, value in ({"steps": 12, "snapshots": 3, "target": 7.0} | train).items()]
    (folder / "run.toml").write_text(
        f"""
[algorithm]
name = "ring_allreduce"
[model]
name = "gpt"
layers = 1
heads = 2
width = 8
[data]
name = "text"
dir = "{folder}"
block = 16
batch_size = 4
[task]
name = "language_modelling"
[optimizer]
name = "adamw"
lr = 0.03
clip = 1.0
[train]
"""
        + "\n".join(lines)
    )
    return folder / "run.toml"


@pytest.fixture
def trained(tmp_path, random):
    """Trains on a text of few bytes in simulated time; returns the run file."""
    (tmp_path / "input.txt").write_bytes(random.choice([97, 98, 99, 32], 4000, p=[0.7, 0.1, 0.1, 0.1]).astype(np.uint8))

    def train(name, *settings, ranks=2, **options):
        path, arguments = tmp_path / f"{name}.h5", [word for setting in settings for word in ("--set", setting)]
        command = ["simulate", str(language(tmp_path, **options)), "--ranks", str(ranks), "--out", str(path)]
        assert main([*command, *arguments, "--save-best", str(tmp_path / "best.pt")]) == 0
        return path

    return train


def test_a_language_model_has_its_own_metric(trained, capsys):
    run = grsgd.load_run(trained("a"))
    assert "test bits per byte" in capsys.readouterr().out
    values = run.curve["test_bits_per_byte"]
    assert (np.diff(values) < 0).all() and values[-1] < 6 and run.attributes["final_test_bits_per_byte"] < 6
    assert run.attributes["best_test_bits_per_byte"] == min(*values, run.attributes["final_test_bits_per_byte"])
    assert "final_test_accuracy" not in run.attributes and np.isnan(run.curve["test_accuracy"]).all()


def test_reports_plots_and_evaluate_show_it(trained, capsys, tmp_path):
    path = trained("a")
    capsys.readouterr()
    assert main(["report", str(path)]) == 0
    header = capsys.readouterr().out.splitlines()[0]
    assert "final bits per byte" in header
    assert "to bits per byte 7 [s]" in header
    assert main(["evaluate", str(path), "--best"]) == 0
    run = grsgd.load_run(path)
    assert f"test bits per byte {run.attributes['best_test_bits_per_byte']:.4g}" in capsys.readouterr().out
    assert [quantity.label for quantity in quantities([Series("a", [run], 0)])] == ["test bits per byte"]
    assert main(["plot", str(path), "-o", str(tmp_path / "a.png")]) == 0


def test_runs_of_two_metrics_in_one_report(trained, capsys):
    one, other = trained("a"), trained("b", "task.metric=perplexity", "train.target=100.0")
    capsys.readouterr()
    assert main(["report", str(one), str(other), "--columns", "final,final_perplexity"]) == 0
    out = capsys.readouterr().out
    assert "final bits per byte" in out and "final perplexity" in out
    runs = [grsgd.load_run(path) for path in (one, other)]
    drawn = quantities([Series(name, [run], 0) for name, run in zip("ab", runs, strict=True)])
    assert [quantity.label for quantity in drawn] == ["test bits per byte", "test perplexity"]
    bits, perplexity = (run.attributes[f"final_test_{run.attributes['metric']}"] for run in runs)
    assert perplexity == pytest.approx(2**bits, rel=1e-5)


def test_training_stops_at_a_target_from_above(trained):
    run = grsgd.load_run(trained("a", "train.stop_at_target=true", steps=60, snapshots=60, target=5.0))
    assert run.attributes["reason"] == "target reached"
    assert run.curve["test_bits_per_byte"][-1] <= 5.0 < run.curve["test_bits_per_byte"][-2]


def test_ranks_compute_what_one_does(trained, tmp_path):
    """The same samples in larger batches: the mean gradient over ranks is that of all of them."""
    one, four = (grsgd.load_run(trained(f"{n}", f"data.batch_size={8 // n}", ranks=n)) for n in (1, 4))
    assert abs(one.curve["test_bits_per_byte"][-1] / four.curve["test_bits_per_byte"][-1] - 1) < 0.05


# ---- metrics


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("error", "metric = 'error': must be a grsgd.Metric"),
        (Metric("a/b"), "a name may have only lower-case letters, digits and _"),
        (Metric("a", 3), "the unit must be a text"),
    ],
)
def test_what_is_no_metric(metric, words):
    with pytest.raises(ConfigError, match=words):
        check_metric(metric)


def test_runs_of_one_metric_in_two_units(trained, tmp_path):
    one, other = (grsgd.load_run(trained(name)) for name in "ab")
    one.attributes["metric_unit"], other.attributes["metric_unit"] = "m", "cm"
    runs = [one, other]
    columns = {name: column for name, column in all_columns(runs).items() if name.startswith("final")}
    assert len({column.data_name for column in columns.values()}) == 2
    assert [known_values([column.of(run) for run in runs]) for column in columns.values()] == [
        [run.attributes["final_test_bits_per_byte"]] for run in runs
    ]
    series = [Series(name, [run], 0) for name, run in zip("ab", runs, strict=True)]
    assert [[quantity.is_known([each]) for each in series] for quantity in quantities(series)] == [
        [True, False],
        [False, True],
    ]
    assert by_experiment(runs) == [[0], [1]]


def test_a_rotary_gpt_has_one_buffer_on_every_device():
    model = zoo.build("gpt", (8,), 16, layers=3, heads=2, width=8, positions="rotary")
    assert [sum(1 for _ in each.buffers()) for each in (model, model.to(torch.float64))] == [1, 1]
