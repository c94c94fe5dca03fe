"""The configuration: defaults, every section, overrides, and refusals in one line that names the key."""

import numpy as np
import pytest
import torch

from grsgd.algorithms import ALGORITHMS, Options
from grsgd.algorithms.central import CentralAlgorithm
from grsgd.algorithms.common_batch import CommonBatchAlgorithm
from grsgd.config import load, parse
from grsgd.config.reading import apply
from grsgd.errors import ConfigError
from grsgd.simulator.network import read as read_network
from grsgd.training.inputs import load_data
from grsgd.training.optimizer import build_optimizer

MINIMAL = """\
[algorithm]
name = "grsgd"

[model]
name = "mlp"

[data]
name = "digits"

[train]
epochs = 1
"""

FULL = """\
seed = 7
device = "cpu"
dtype = "float64"

[algorithm]
name = "grsgd"
topology = "ring"
policy = "alternate"
H = 3
merge = "average"
inbox_capacity = 4
inbox_full = "merge"

[model]
name = "mlp"
hidden = [32, 16]

[data]
name = "imagefolder"
dir = "/data"
batch_size = 8
alpha = 0.5
replication = 2
augment = true
workers = 2
size = 64

[optimizer]
name = "AdamW"
lr = 0.01
decay_norms = false
weight_decay = 0.1
betas = [0.8, 0.9]

[schedule]
name = "step"
warmup = 0.5
milestones = [1.0, 2.0]
factor = 0.5

[train]
samples = 1000
target_accuracy = 0.9
snapshots = 5

[stragglers.slowdown]
1 = 2.0

[stragglers.tail]
0 = { probability = 0.1, seconds = 0.5 }

[stragglers.pause]
2 = { every = 10, seconds = 1.0 }

[comm]
progress_mode = "inline"
timeout = 30.0
"""


@pytest.fixture
def file(tmp_path):
    def write(content, name="run.toml"):
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def refusal(file, *overrides, content=MINIMAL) -> str:
    path = file(content)
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return one_line(caught)


def test_defaults(file):
    config = load(file(MINIMAL))
    assert (config.seed, config.device, config.dtype) == (0, "auto", "float32")
    assert (config.algorithm.name, config.model.name, config.data.name) == ("grsgd", "mlp", "digits")
    data, optimizer, schedule, train = config.data, config.optimizer, config.schedule, config.train
    assert (data.dir, data.batch_size, data.alpha, data.augment, data.workers) == ("data", 16, None, False, 0)
    assert data.options == config.model.options == optimizer.options == {}
    assert (optimizer.name, optimizer.lr, optimizer.decay_norms) == ("sgd", 0.1, True)
    assert (schedule.name, schedule.warmup, schedule.milestones, schedule.factor) == ("constant", 0, [], 0.1)
    assert (train.epochs, train.steps, train.samples, train.seconds) == (1, None, None, None)
    assert (train.target_accuracy, train.snapshots) == (None, 20)
    assert (config.stragglers.slowdown, config.stragglers.tail, config.stragglers.pause) == ({}, {}, {})
    assert (config.comm.progress_mode, config.comm.timeout) == ("auto", 600.0)
    options = config.algorithm_options
    found = options.policy, options.H, options.merge, options.inbox_capacity
    assert found == ("random", None, "push-sum", 2) and config.data.replication == 1


def test_every_section(file):
    config = load(file(FULL))
    assert (config.seed, config.device, config.dtype) == (7, "cpu", "float64")
    options = config.algorithm_options
    found = config.data.replication, options.policy, options.H, options.merge, options.inbox_capacity
    assert found == (2, "alternate", 3, "average", 4)
    assert config.model.options == {"hidden": [32, 16]}
    assert config.data.options == {"size": 64}
    assert (config.data.dir, config.data.batch_size, config.data.alpha) == ("/data", 8, 0.5)
    assert (config.data.augment, config.data.workers) == (True, 2)
    assert config.optimizer.options == {"weight_decay": 0.1, "betas": [0.8, 0.9]}
    assert (config.schedule.name, config.schedule.milestones) == ("step", [1.0, 2.0])
    assert (config.train.samples, config.train.target_accuracy, config.train.snapshots) == (1000, 0.9, 5)
    assert config.stragglers.slowdown == {1: 2.0}
    assert (config.stragglers.tail[0].probability, config.stragglers.tail[0].seconds) == (0.1, 0.5)
    assert (config.stragglers.pause[2].every, config.stragglers.pause[2].seconds) == (10, 1.0)
    assert (config.comm.progress_mode, config.comm.timeout) == ("inline", 30.0)


def test_a_configuration_does_not_change(file):
    config = load(file(MINIMAL))
    with pytest.raises(ValueError):
        config.seed = 1


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_works_with_its_defaults(file, name):
    config = load(file(MINIMAL), [f"algorithm.name={name}"])
    assert config.algorithm_options == ALGORITHMS[name].Options()
    config.check_ranks(4)


@pytest.mark.parametrize("content", [MINIMAL, FULL])
def test_toml_holds_everything(file, content):
    config = load(file(content))
    again = load(file(config.toml(), "again.toml"))
    assert again.model_dump(exclude={"algorithm"}) == config.model_dump(exclude={"algorithm"})
    assert again.algorithm_options == config.algorithm_options
    assert load(file(again.toml(), "third.toml")) == again
    assert again.toml() == config.toml()


def test_toml_of_a_full_configuration_gives_the_same_one(file):
    config = load(file(FULL))
    assert load(file(config.toml(), "again.toml")) == config


def test_toml_spells_out_the_defaults_of_the_algorithm(file):
    assert 'policy = "random"' in load(file(MINIMAL)).toml()


# ---- overrides


@pytest.mark.parametrize(
    "override, value",
    [
        ("optimizer.lr=0.05", lambda c: c.optimizer.lr == 0.05),
        ("optimizer.lr = 1e-3", lambda c: c.optimizer.lr == 1e-3),
        ("optimizer.lr=1", lambda c: c.optimizer.lr == 1.0),
        ("optimizer.momentum=0.9", lambda c: c.optimizer.options == {"momentum": 0.9}),
        ("seed=3", lambda c: c.seed == 3),
        ("data.dir=/tmp/with space", lambda c: c.data.dir == "/tmp/with space"),
        ("data.dir='/tmp/a=b'", lambda c: c.data.dir == "/tmp/a=b"),
        ('data.dir="quoted"', lambda c: c.data.dir == "quoted"),
        ("data.augment=true", lambda c: c.data.augment is True),
        ("device=cpu", lambda c: c.device == "cpu"),
        ("algorithm.policy=successor", lambda c: c.algorithm_options.policy == "successor"),
        ("schedule={name='step', milestones=[1, 2.5]}", lambda c: c.schedule.milestones == [1.0, 2.5]),
        ("model.hidden=[8]", lambda c: c.model.options == {"hidden": [8]}),
        ("stragglers.slowdown={1=2.5}", lambda c: c.stragglers.slowdown == {1: 2.5}),
        ("stragglers.slowdown.1=4", lambda c: c.stragglers.slowdown == {1: 4.0}),
        ("stragglers.tail.3={probability=0.5, seconds=1}", lambda c: c.stragglers.tail[3].probability == 0.5),
        ("stragglers.pause={0={every=2, seconds=0.1}}", lambda c: c.stragglers.pause[0].every == 2),
        ("comm={timeout=5.0}", lambda c: c.comm.timeout == 5.0),
    ],
)
def test_override(file, override, value):
    assert value(load(file(MINIMAL), [override]))


def test_overrides_apply_in_order(file):
    assert load(file(MINIMAL), ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("key, value", [("steps", 5), ("samples", 100), ("seconds", 2.5), ("epochs", 3)])
def test_to_set_an_end_is_to_mean_that_one(file, key, value):
    train = load(file(MINIMAL), [f"train.{key}={value}"]).train
    assert getattr(train, key) == value
    assert sum(getattr(train, end) is not None for end in ("epochs", "steps", "samples", "seconds")) == 1


@pytest.mark.parametrize("override", ["seed", "=3", "optimizer..lr=3", ".lr=3", "optimizer.=3", ""])
def test_override_without_key_or_value(file, override):
    assert f"--set {override}: expected key=value" in refusal(file, override)


def test_override_below_a_value(file):
    assert "--set model.name.x=3: name is not a section" in refusal(file, "model.name.x=3")


@pytest.mark.parametrize(
    "overrides, value",
    [
        (["algorithm.name=dpsgd"], lambda c: (c.algorithm.name, c.algorithm.options) == ("dpsgd", {})),
        (["algorithm.name=grsgd"], lambda c: c.algorithm_options.policy == "alternate"),
        (["algorithm={name='dpsgd'}"], lambda c: c.algorithm.options == {}),
        (["algorithm.name=local_sgd", "algorithm.H=8"], lambda c: c.algorithm.options == {"H": 8}),
        (["algorithm.H=8", "algorithm.name=local_sgd"], lambda c: c.algorithm.options == {"H": 8}),
        (["model.name=cnn"], lambda c: c.model.options == {}),
        (["data.name=digits"], lambda c: (c.data.batch_size, c.data.alpha, c.data.options) == (8, 0.5, {})),
        (["schedule.name=cosine"], lambda c: (c.schedule.warmup, c.schedule.milestones) == (0.5, [])),
        (["schedule.warmup=1", "train.seconds=3"], lambda c: (c.schedule.name, c.train.samples) == ("step", None)),
        (["stragglers.slowdown={3=2}"], lambda c: c.stragglers.slowdown == {3: 2.0}),
    ],
)
def test_another_name_drops_the_options_of_the_one_before(file, overrides, value):
    assert value(load(file(FULL), overrides))


def test_apply_makes_missing_sections():
    content = {}
    apply("a.b.c=1", content)
    assert content == {"a": {"b": {"c": 1}}}


# ---- a base


def based(file, own, base=FULL, overrides=()):
    file(base, "base.toml")
    return load(file('base = "base.toml"\n' + own), overrides)


def test_a_file_may_have_no_more_than_a_base(file):
    assert based(file, "") == load(file(FULL))


@pytest.mark.parametrize(
    "own, value",
    [
        ("seed = 8", lambda c: c.seed == 8 and c.device == "cpu"),
        ("[algorithm]\nH = 9", lambda c: (c.algorithm_options.H, c.algorithm_options.policy) == (9, "alternate")),
        ('[algorithm]\nname = "grsgd"\nH = 9', lambda c: c.algorithm_options.policy == "alternate"),
        ('[algorithm]\nname = "dpsgd"', lambda c: (c.algorithm.name, c.algorithm.options) == ("dpsgd", {})),
        ('[model]\nname = "mlp"', lambda c: c.model.options == {"hidden": [32, 16]}),
        ('[model]\nname = "cnn"', lambda c: (c.model.name, c.model.options) == ("cnn", {})),
        ("[model]\nhidden = [8]", lambda c: c.model.options == {"hidden": [8]}),
        ('[data]\nname = "digits"', lambda c: c.data.batch_size == 8 and c.data.options == {}),
        ('[data]\nname = "imagefolder"', lambda c: c.data.batch_size == 8 and c.data.options == {"size": 64}),
        ('[optimizer]\nname = "adam"', lambda c: c.optimizer.lr == 0.01 and c.optimizer.options["betas"] == [0.8, 0.9]),
        ('[schedule]\nname = "cosine"', lambda c: (c.schedule.name, c.schedule.warmup) == ("cosine", 0.5)),
        ("[train]\nsnapshots = 6", lambda c: (c.train.samples, c.train.snapshots) == (1000, 6)),
        ("[train]\nepochs = 2", lambda c: (c.train.epochs, c.train.samples, c.train.snapshots) == (2.0, None, 5)),
        ("[stragglers.slowdown]\n2 = 3", lambda c: c.stragglers.slowdown == {1: 2.0, 2: 3.0}),
        ("[stragglers.tail.0]\nseconds = 4", lambda c: c.stragglers.tail[0].probability == 0.1),
    ],
)
def test_own_keys_replace_those_of_the_base(file, own, value):
    config = based(file, own)
    assert value(config)
    assert load(file(config.toml(), "again.toml")).toml() == config.toml()
    assert "base" not in config.toml()


def test_sections_that_only_one_file_has(file):
    data = '[data]\nname = "digits"\n'
    config = based(file, '[schedule]\nname = "cosine"\n' + data, MINIMAL.replace(data, ""))
    assert (config.schedule.name, config.data.name, config.model.name) == ("cosine", "digits", "mlp")


def test_overrides_come_after_the_base(file):
    config = based(file, "seed = 8\n[train]\nepochs = 2", overrides=["seed=9", "train.steps=4", "algorithm.H=5"])
    assert (config.seed, config.train.steps, config.train.epochs, config.algorithm_options.H) == (9, 4, None, 5)


def test_a_base_of_a_base_lies_relative_to_the_file_that_names_it(file, tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file(MINIMAL, "first.toml")
    file('base = "../first.toml"\nseed = 1\ndevice = "cpu"', "deeper/second.toml")
    path = file('base = "deeper/second.toml"\nseed = 2')
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(path)
    assert (config.seed, config.device, config.train.epochs) == (2, "cpu", 1.0)
    assert load(file(f"base = '{path}'", "elsewhere/third.toml")) == config


def test_two_ends_are_still_refused(file):
    message = refusal(file, content=f"base = '{file(MINIMAL, 'base.toml')}'\n[train]\nsteps = 1\nseconds = 2")
    assert "train: give exactly one of epochs, steps, samples and seconds; found steps and seconds" in message


def test_mistakes_in_a_base_are_told_of_the_file_given(file):
    file(MINIMAL + "epoch = 3", "base.toml")
    message = refusal(file, content='base = "base.toml"\nsed = 3')
    assert message.startswith(f"{file('', 'run.toml')}: ")
    assert "train.epoch: unknown key" in message and "sed: unknown key" in message


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    """Editors of Windows write it."""
    path = tmp_path / "run.toml"
    content = '[algorithm]\nname = "dpsgd"\n[model]\nname = "mlp"\n[data]\nname = "digits"\n[train]\nsteps = 3\n'
    path.write_text(content, "utf-8-sig")
    assert load(path).train.steps == 3
    (tmp_path / "network.toml").write_text('bandwidth = "1gbit"\nlatency = "1us"\n', "utf-8-sig")
    assert read_network(str(tmp_path / "network.toml")) == {"bandwidth": "1gbit", "latency": "1us"}


@pytest.mark.parametrize("base, reason", [("seed = ", "not valid TOML: "), (None, "No such file or directory")])
def test_a_base_that_cannot_be_read(file, tmp_path, base, reason):
    if base:
        file(base, "base.toml")
    message = refusal(file, content='base = "base.toml"')
    assert message.startswith(f"{tmp_path / 'run.toml'}: base = 'base.toml': {tmp_path / 'base.toml'}: {reason}")


@pytest.mark.parametrize("value", ["3", "true", '["base.toml"]'])
def test_a_base_is_a_path(file, value):
    assert ": expected the path of another configuration file" in refusal(file, content=f"base = {value}")


@pytest.mark.parametrize("other", ["run.toml", "./run.toml", "base.toml"])
def test_bases_in_a_circle(file, tmp_path, other):
    file(f'base = "{other}"', "base.toml")
    message = refusal(file, content='base = "base.toml"')
    name, heir = tmp_path / other, tmp_path / "base.toml"
    assert message.endswith(f"{heir}: base = '{other}': {name} is itself based on {heir}")
    assert message.startswith(f"{tmp_path / 'run.toml'}: ")


def test_a_section_replaces_a_value(file):
    section = '[model]\nname = "mlp"\n'
    assert based(file, section, "model = 3\n" + MINIMAL.replace(section, "")).model.name == "mlp"


def test_a_value_replaces_a_section(file):
    with pytest.raises(ConfigError, match="run.toml: model = 3: "):
        based(file, "model = 3")


# ---- refusals


@pytest.mark.parametrize(
    "override, expected",
    [
        ("sed=3", "sed: unknown key (did you mean seed?); allowed: seed, device"),
        ("zzz=3", "zzz: unknown key; allowed: seed, device"),
        ("train.epoch=3", "train.epoch: unknown key (did you mean epochs?); allowed: epochs, steps"),
        ("schedule.warmpu=3", "schedule.warmpu: unknown key (did you mean warmup?)"),
        ("comm.time_out=3", "comm.time_out: unknown key (did you mean timeout?)"),
        ("stragglers.slow={}", "stragglers.slow: unknown key"),
        ("algorithm.polcy=3", "algorithm.polcy: unknown key (did you mean policy?); allowed: compression, topology, "),
        ("stragglers.tail={0={probability=0.1, second=1}}", "stragglers.tail.0.second: unknown key (did you mean sec"),
        ("stragglers.pause={0={ever=1, seconds=1}}", "stragglers.pause.0.ever: unknown key (did you mean every?)"),
    ],
)
def test_unknown_key(file, override, expected):
    message = refusal(file, override)
    assert message.startswith(f"{file(MINIMAL)}: ")
    assert expected in message


@pytest.mark.parametrize(
    "override, key",
    [
        ("seed=true", "seed"),
        ("seed=1.0", "seed"),
        ("seed=-1", "seed = -1"),
        ("seed=9223372036854775808", "seed"),
        ("device=tpu", "device = 'tpu'"),
        ("dtype=float16", "dtype = 'float16'"),
        ("model=3", "model = 3"),
        ("model.name=3", "model.name = 3"),
        ("data.batch_size=0", "data.batch_size = 0"),
        ("data.batch_size=2.5", "data.batch_size = 2.5"),
        ("data.alpha=0.0", "data.alpha = 0.0"),
        ("data.alpha=inf", "data.alpha = inf"),
        ("data.augment=1", "data.augment = 1"),
        ("data.only_classes=0", "data.only_classes = 0"),
        ("data.only_train=2.0", "data.only_train = 2.0"),
        ("data.only_test=true", "data.only_test = True"),
        ("data.workers=-1", "data.workers = -1"),
        ("data.dir=3", "data.dir = 3"),
        ("optimizer.lr=0", "optimizer.lr = 0"),
        ("optimizer.lr=-0.1", "optimizer.lr = -0.1"),
        ("optimizer.lr=nan", "optimizer.lr = nan"),
        ("optimizer.lr=fast", "optimizer.lr = 'fast'"),
        ("optimizer.decay_norms=no", "optimizer.decay_norms = 'no'"),
        ("schedule.name=linear", "schedule.name: 'linear' is unknown"),
        ("schedule.warmup=-1", "schedule.warmup = -1"),
        ("schedule.name=step", "schedule: name = 'step' needs milestones, such as"),
        ("schedule.milestones=[1.0]", "schedule: milestones with name = 'constant': name = 'step' is needed"),
        ("schedule={name='cosine', factor=0.5}", "schedule: factor with name = 'cosine': name = 'step' is needed"),
        ("schedule.milestones=[1, 0]", "schedule.milestones.1 = 0"),
        ("schedule.milestones=3", "schedule.milestones = 3"),
        ("schedule.factor=0", "schedule.factor = 0"),
        ("train.epochs=0", "train.epochs = 0"),
        ("train.steps=0", "train.steps = 0"),
        ("train.steps=1.5", "train.steps = 1.5"),
        ("train.samples=0", "train.samples = 0"),
        ("train.seconds=-1", "train.seconds = -1"),
        ("train.target_accuracy=93", "train.target_accuracy = 93"),
        ("train.target_accuracy=0", "train.target_accuracy = 0"),
        ("train.snapshots=0", "train.snapshots = 0"),
        ("train.evaluate_replicas=0", "train.evaluate_replicas = 0"),
        ("comm.progress_mode=fast", "comm.progress_mode = 'fast'"),
        ("comm.progress=inline", "comm.progress: is called comm.progress_mode now"),
        ("comm.timeout=0", "comm.timeout = 0"),
        ("stragglers=3", "stragglers = 3"),
        ("stragglers.slowdown=3", "stragglers.slowdown = 3"),
        ("stragglers.slowdown=fast", "stragglers.slowdown = 'fast'"),
        ("stragglers.slowdown=[1]", "stragglers.slowdown = [1]"),
        ("stragglers.slowdown.0=0.5", "stragglers.slowdown.0 = 0.5"),
        ("stragglers.slowdown.x=2", "stragglers.slowdown.x = 'x'"),
        ("stragglers.slowdown={-1=2.0}", "stragglers.slowdown.-1 = '-1'"),
        ("stragglers.tail=3", "stragglers.tail = 3"),
        ("stragglers.tail={0={probability=1.5, seconds=1}}", "stragglers.tail.0.probability = 1.5"),
        ("stragglers.tail={0={seconds=1}}", "stragglers.tail.0.probability: missing"),
        ("stragglers.tail={0=1}", "stragglers.tail.0 = 1"),
        ("stragglers.pause={0={every=0, seconds=1}}", "stragglers.pause.0.every = 0"),
        ("algorithm.rho=2", "algorithm.rho: is called data.replication now"),
        ("data.replication=0", "data.replication = 0"),
        ("algorithm.H=0", "algorithm.H = 0"),
        ("algorithm.H=1.5", "algorithm.H = 1.5"),
        ("algorithm.policy=left", "algorithm.policy = 'left'"),
        ("algorithm.merge=sum", "algorithm.merge = 'sum'"),
        ("algorithm.inbox_capacity=0", "algorithm.inbox_capacity = 0"),
    ],
)
def test_wrong_type_or_out_of_range(file, override, key):
    assert key in refusal(file, override)


def test_several_mistakes_still_make_one_line(file):
    message = refusal(file, "seed=-1", "devcie=cpu", "optimizer.lr=x")
    assert all(key in message for key in ("seed = -1", "devcie", "optimizer.lr"))


def test_unknown_algorithm(file):
    message = refusal(file, "algorithm.name=sgd")
    assert "algorithm.name = 'sgd': unknown (did you mean " in message
    assert f"?); allowed: {', '.join(sorted(ALGORITHMS))}, " in message


@pytest.mark.parametrize("section", ["algorithm", "model", "data", "train"])
def test_missing_section(section):
    content = {"algorithm": {"name": "grsgd"}, "model": {"name": "m"}, "data": {"name": "d"}, "train": {"steps": 1}}
    del content[section]
    with pytest.raises(ConfigError) as caught:
        parse(content)
    assert one_line(caught) == f"config: {section}: missing"


@pytest.mark.parametrize("section", ["algorithm", "model", "data"])
def test_missing_name(section):
    content = {"algorithm": {"name": "grsgd"}, "model": {"name": "m"}, "data": {"name": "d"}, "train": {"steps": 1}}
    content[section] = {}
    with pytest.raises(ConfigError) as caught:
        parse(content)
    assert one_line(caught) == f"config: {section}.name: missing"


def test_two_ends(file):
    message = refusal(file, content=MINIMAL + "steps = 3\n")
    assert "train: give exactly one of epochs, steps, samples and seconds; found epochs and steps" in message


def test_no_end(file):
    message = refusal(file, content=MINIMAL.replace("epochs = 1", ""))
    assert "train: give exactly one of epochs, steps, samples and seconds; found none" in message


def test_cosine_needs_a_known_length(file):
    assert "schedule.name = 'cosine' needs" in refusal(file, "schedule.name=cosine", "train.seconds=3")
    assert load(file(MINIMAL), ["schedule.name=cosine"]).schedule.name == "cosine"


@pytest.mark.parametrize("content", ["seed = ", "[train\n", "seed = 1\nseed = 2\n", 'x = "\n"'])
def test_bad_toml(file, content):
    message = refusal(file, content=content)
    assert message.startswith(f"{file(content)}: not valid TOML: ")


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "absent.toml")
    assert one_line(caught) == f"{tmp_path / 'absent.toml'}: No such file or directory"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert one_line(caught) == f"{tmp_path}: Is a directory"


def test_not_text(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert one_line(caught).startswith(f"{path}: ")


# ---- what depends on the number of ranks


def rank_refusal(config, ranks) -> str:
    with pytest.raises(ConfigError) as caught:
        config.check_ranks(ranks)
    return one_line(caught)


@pytest.mark.parametrize(
    "override, kind",
    [
        ("stragglers.slowdown.3=2.0", "slowdown"),
        ("stragglers.tail.3={probability=0.5, seconds=1.0}", "tail"),
        ("stragglers.pause.3={every=2, seconds=1.0}", "pause"),
    ],
)
def test_straggler_beyond_the_job(file, override, kind):
    config = load(file(MINIMAL), [override])
    config.check_ranks(4)
    assert rank_refusal(config, 3) == f"stragglers.{kind}: rank 3 in a job of 3; allowed: 0 to 2"


WITH_SHARDS_ON_ALL = sorted(
    name for name, cls in ALGORITHMS.items() if not issubclass(cls, CommonBatchAlgorithm | CentralAlgorithm)
)


@pytest.mark.parametrize("algorithm", WITH_SHARDS_ON_ALL)
def test_more_redundancy_than_ranks(file, algorithm):
    config = load(file(MINIMAL), [f"algorithm.name={algorithm}", "data.replication=3"])
    config.check_ranks(3)
    assert rank_refusal(config, 2) == "data.replication = 3 with 2 ranks that train; allowed: 1 to 2"


@pytest.mark.parametrize("algorithm", ["asgd", "parameter_server"])
@pytest.mark.parametrize("optimizer", ["Adafactor", "muon", "lbfgs"])
def test_several_servers_need_an_element_wise_optimizer(file, algorithm, optimizer):
    servers = [f"algorithm.name={algorithm}", "algorithm.servers=2"]
    with pytest.raises(ConfigError, match=f"^optimizer.name = '{optimizer}' with algorithm.servers > 1: .*allowed: se"):
        load(file(MINIMAL), [*servers, f"optimizer.name={optimizer}"]).check_ranks(4)
    load(file(MINIMAL), [*servers, "optimizer.name=AdamW"]).check_ranks(4)
    load(file(MINIMAL), [servers[0], f"optimizer.name={optimizer}"]).check_ranks(4)


def test_topology_matrix_of_the_wrong_size(file, tmp_path):
    path = tmp_path / "matrix.txt"
    np.savetxt(path, np.full((3, 3), 1 / 3))
    config = load(file(MINIMAL), ["algorithm.name=dpsgd", f"algorithm.topology={path}"])
    config.check_ranks(3)
    assert rank_refusal(config, 4) == f"algorithm dpsgd: {path} is a mixing matrix for 3 ranks; this job has 4 ranks"


def test_unknown_topology(file):
    config = load(file(MINIMAL), ["algorithm.name=dpsgd", "algorithm.topology=star"])
    assert "'star' is neither a matrix file nor one of ring, directed-ring, " in rank_refusal(config, 4)


# ---- the optimizer


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def build(file, *overrides):
    return build_optimizer(load(file(MINIMAL), overrides).optimizer, network().parameters())


def optimizer_refusal(file, *overrides) -> str:
    with pytest.raises(ConfigError) as caught:
        build(file, *overrides)
    return one_line(caught)


@pytest.mark.parametrize("name, cls", [("sgd", "SGD"), ("SGD", "SGD"), ("adam", "Adam"), ("AdamW", "AdamW")])
def test_optimizer_in_any_case(file, name, cls):
    optimizer = build(file, f"optimizer.name={name}", "optimizer.lr=0.25")
    assert type(optimizer).__base__ is getattr(torch.optim, cls)  # itself, less what is for those who compile
    assert [group["lr"] for group in optimizer.param_groups] == [0.25]
    assert len(optimizer.param_groups[0]["params"]) == 6


@pytest.mark.parametrize(
    "name, key, value",
    [
        ("sgd", "momentum", 0.9),
        ("sgd", "dampening", 0.5),
        ("sgd", "weight_decay", 1e-4),
        ("sgd", "foreach", True),
        ("adam", "betas", [0.8, 0.99]),
        ("adam", "eps", 1e-6),
        ("adam", "amsgrad", True),
        ("adamw", "weight_decay", 0.5),
        ("rmsprop", "alpha", 0.9),
    ],
)
def test_optimizer_argument(file, name, key, value):
    (group,) = build(file, f"optimizer.name={name}", f"optimizer.{key}={str(value).lower()}").param_groups
    assert group[key] == (tuple(value) if isinstance(value, list) and isinstance(group[key], tuple) else value)


def test_nesterov(file):
    (group,) = build(file, "optimizer.nesterov=true", "optimizer.momentum=0.9").param_groups
    assert group["nesterov"] is True


def test_without_decay_of_norms_and_biases(file):
    matrices, vectors = build(file, "optimizer.decay_norms=false", "optimizer.weight_decay=0.1").param_groups
    assert [p.ndim for p in matrices["params"]] == [2, 2]
    assert [p.ndim for p in vectors["params"]] == [1, 1, 1, 1]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert matrices["lr"] == vectors["lr"] == 0.1


def test_unknown_optimizer(file):
    message = optimizer_refusal(file, "optimizer.name=sdg")
    assert message.startswith("optimizer.name = 'sdg': unknown; allowed: ")
    assert "sgd" in message and "adamw" in message


def test_the_base_class_is_no_optimizer(file):
    assert "optimizer.name = 'optimizer': unknown" in optimizer_refusal(file, "optimizer.name=optimizer")


@pytest.mark.parametrize(
    "key, hint",
    [("momentun", "(did you mean momentum?)"), ("betas", ""), ("params", ""), ("decay_norm", "decay_norms")],
)
def test_unknown_optimizer_argument(file, key, hint):
    message = optimizer_refusal(file, f"optimizer.{key}=1")
    assert message.startswith(f"optimizer.{key}: unknown key")
    assert hint in message
    assert "momentum" in message  # what is allowed


@pytest.mark.parametrize(
    "overrides, key",
    [
        (["optimizer.momentum=-1"], "momentum = -1"),
        (["optimizer.nesterov=true"], "nesterov = True"),
        (["optimizer.name=adam", "optimizer.betas=[2.0, 0.9]"], "betas = [2.0, 0.9]"),
        (["optimizer.fused=true", "optimizer.foreach=true"], "fused = True"),
    ],
)
def test_invalid_optimizer_value(file, overrides, key):
    message = optimizer_refusal(file, *overrides)
    assert message.startswith("optimizer ")
    assert key in message


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["optimizer.momentum=fast"], "optimizer.momentum = 'fast': expected a number"),
        (["optimizer.nesterov=1"], "optimizer.nesterov = 1: expected true or false"),
        (["optimizer.name=adam", "optimizer.eps=true"], "optimizer.eps = True: expected a number"),
        (["optimizer.name=adam", "optimizer.betas=0.9"], "optimizer.betas = 0.9: expected a list of 2 numbers"),
        (["optimizer.name=adam", "optimizer.betas=[0.9]"], "optimizer.betas = [0.9]: expected a list of 2 numbers"),
    ],
)
def test_an_optimizer_value_of_another_kind(file, overrides, message):
    assert optimizer_refusal(file, *overrides) == message


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.samples=many", "data.samples = 'many': expected a whole number"),
        ("data.samples=200.0", "data.samples = 200.0: expected a whole number"),
        ("data.shape=28", "data.shape = 28: expected a list of 3 whole numbers"),
    ],
)
def test_an_option_of_the_data_of_another_kind(file, override, message):
    with pytest.raises(ConfigError) as refused:
        load_data(load(file(MINIMAL), ["data.name=synthetic", override]))
    assert str(refused.value) == message


def test_a_batch_of_more_samples_than_there_are(file):
    settings = ["data.name=synthetic", "data.samples=60"]
    load_data(load(file(MINIMAL), [*settings, "data.batch_size=60"]))
    with pytest.raises(ConfigError, match="^data.batch_size = 61: larger than the training data; allowed: 1 to 60$"):
        load_data(load(file(MINIMAL), [*settings, "data.batch_size=61"]))


def test_a_plain_value_for_a_section(file):
    assert refusal(file, "algorithm=dpsgd").endswith(
        ": algorithm = 'dpsgd': is a section (did you mean algorithm.name?); its keys: name"
    )
    assert ": train = 5: is a section; its keys: epochs, " in refusal(file, "train=5")


@pytest.mark.parametrize("override", ["train.epochs=1e300", "schedule.warmup=inf"])
def test_epochs_without_end(file, override):
    assert "should be less than or equal to 1000000000" in refusal(file, override)


@pytest.mark.parametrize(
    "override",
    [
        "optimizer.momentum=9223372036854775808",
        "train.steps=9223372036854775808",
        "data.batch_size=-9223372036854775809",
        "model.hidden=[9223372036854775808]",
        "stragglers.slowdown.1=9223372036854775808",
    ],
)
def test_whole_numbers_beyond_64_bits(file, override):
    message = refusal(file, override)
    assert "whole numbers are from -2^63 to 2^63 - 1" in message and override.partition("=")[0] in message


@pytest.mark.parametrize("override", ["train.snapshots=100000000000", "data.batch_size=1000000000000"])
def test_numbers_that_no_run_has(file, override):
    assert "less than or equal to" in refusal(file, override)


def test_a_number_of_too_many_digits(file):
    assert "not valid TOML" in refusal(file, content=f"seed = {'9' * 5000}")


@pytest.mark.parametrize(
    "override, expected",
    [
        ("algorithm.h=3", "algorithm.h: is called algorithm.H now"),
        ("algorithm.copies=2", "algorithm.copies: is called data.replication now"),
        ("algorithm.merge=mean", "algorithm.merge = 'mean': is called 'average' now"),
    ],
)
def test_what_was_renamed_is_refused_by_its_new_name(file, monkeypatch, override, expected):
    monkeypatch.setattr(ALGORITHMS["grsgd"].Options, "renamed", {"h": "H"}, raising=False)
    monkeypatch.setattr(Options, "renamed", {"copies": "data.replication"})
    monkeypatch.setattr(ALGORITHMS["grsgd"].Options, "renamed_values", {"merge": {"mean": "average"}}, raising=False)
    assert refusal(file, override).endswith(f": {expected}")
