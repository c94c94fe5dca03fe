"""The conditions that all trainings of a command share, and functions that specify runs under these conditions."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from experiments.runner import occasions, run_spec
from experiments.runner.run_spec import MEASURED, SIMULATED, TIMING_ONLY, UNIT_STEPS, Link, RunSpec
from experiments.runner.scale import Scale
from experiments.runner.setting import EQUAL, Scenario, Setting
from grsgd.config import Config
from grsgd.models.zoo import build


@dataclass(frozen=True)
class Conditions:
    """The scale (size of the experiment, such as smoke or desk), and the values of configurations that users replace.

    emulated: True if measured runs use the links and processors that the scale states. overrides: ``key=value``
    overrides of every training. imagenet: the folder of ImageNet, for trainings on ImageNet. looks: 1, or 2 for twice
    as many seeds of simulated trainings, if a claim was undecided with the first seeds.
    """

    scale: Scale
    emulated: bool
    overrides: tuple[str, ...] = ()
    imagenet: Path | None = None
    looks: int = 1

    def load(self, config: str, overrides: tuple[str, ...] = ()) -> Config:
        """Return the configuration ``config`` with the overrides of the scale and of the user. Raises ConfigError."""
        return run_spec.load_config(config, (*self.replaced(config), *overrides))

    def replaced(self, config: str) -> tuple[str, ...]:
        """Return the overrides of the scale and of the user for all trainings of the folder in which ``config`` is."""
        replaced = run_spec.overrides_beside(config, self.scale.file) if self.scale.file else ()
        if replaced and self.imagenet:
            replaced += (f"data.dir={json.dumps(str(self.imagenet))}",)
        return (*replaced, *self.scale.overrides, *self.overrides)

    def seeds(self, source: str, seeds: int | None) -> range:
        """Return the seeds of the trainings of one setting.

        The number of seeds is ``seeds`` for each look at the data, or the scale's number if ``seeds`` is None.
        """
        if source == MEASURED:
            count = seeds or self.scale.clock_seeds
        else:
            count = self.looks * (seeds or self.scale.seeds)
        return occasions.seeds(count, share_first=self.scale.has_one_calibration)

    def can_be(self, source: str, scenario: Scenario = EQUAL) -> bool:
        """Return True if runs with the given source of times (simulated or measured) are possible.

        Measured runs with slow links or slow hosts are possible only on a testbed.
        """
        return source != MEASURED or self.emulated or not (scenario.slow_links or scenario.slow_hosts)

    def ranks(self, source: str, scenario: Scenario = EQUAL) -> tuple[int, ...]:
        """Return the scale's numbers of ranks for a source of times (simulated or measured).

        The returned tuple is empty if runs with this source of times are not possible.
        """
        if not self.can_be(source, scenario):
            return ()
        return self.scale.clock_ranks if source == MEASURED else self.scale.ranks

    # ---- methods that specify runs

    def spec(self, setting: Setting, seed: int, rate: float) -> RunSpec:
        """Return the specification of the run of a setting with the given seed and learning rate."""
        scenario, measured = setting.scenario, setting.source == MEASURED
        slowed = () if measured else tuple(f"stragglers.slowdown.{rank}={by}" for rank, by in scenario.slow_hosts)
        overrides = (*setting.overrides, *scenario.overrides, *slowed)
        options = self.load(setting.config, setting.overrides).algorithm_options
        servers = options.servers if getattr(options, "server", None) == "dedicated" else 0
        return RunSpec(
            setting.config,
            (*self.replaced(setting.config), *overrides, f"optimizer.lr={rate}", f"seed={seed}"),
            setting.ranks + servers,
            setting.source,
            setting.link or Link(self.scale.slow_rate if scenario.slow_links else self.scale.rate),
            scenario.slow_hosts if measured else (),
            setting.compute,
        )

    def leader(self, setting: Setting) -> str:
        """Return the name of the configuration whose trainings take the same steps as the training in ``setting``.

        If the algorithm applies the exact mean gradient, this configuration is the ring all-reduce in the folder of
        the training. If the algorithm does not apply the exact mean gradient, the training's own configuration is
        returned.
        """
        shared = self.load(setting.config, setting.overrides).traits.exact_gradient
        return f"{setting.config.rpartition('/')[0]}/ring_allreduce" if shared else setting.config

    def trajectory(self, setting: Setting) -> Setting:
        """Return the setting of a training that takes the same steps as the training in ``setting``.

        If the training's steps depend on times, the returned setting is the given one with simulated times. If the
        algorithm applies the mean gradient of the global batch, a single rank with a batch n times as large takes the
        steps of n ranks. The training of the single rank differs from that on n ranks only in the order of samples and
        in the rounding of fixed-point numbers. If the model has batch normalisation, each rank normalises its own
        batch, so that a single rank cannot replace n ranks. With batch normalisation, all algorithms with the exact
        mean gradient share the ring all-reduce's training on n ranks. The steps of synchronous ranks do not depend on
        the speed of ranks and links.
        """
        traits = self.load(setting.config, setting.overrides).traits
        if not traits.synchronous:
            return setting.but(source=SIMULATED)
        alike = setting.but(source=UNIT_STEPS, scenario=EQUAL, link=None, compute=None)
        if not traits.exact_gradient:
            return alike
        kept = tuple(override for override in setting.overrides if not override.startswith("algorithm."))
        alike = alike.but(config=self.leader(setting), overrides=kept)
        loaded = self.load(alike.config, kept)
        if setting.ranks == 1 or normalises_batches(loaded.model.name):
            return alike
        whole = setting.ranks * loaded.data.batch_size
        return alike.but(ranks=1, overrides=(*kept, f"data.batch_size={whole}"))

    def share_numbers(self, ours: Setting, theirs: Setting) -> bool:
        """Return True if runs of two settings with equal seeds share random numbers and are compared in pairs.

        Trainings on equally many ranks take the same samples in the same order, with the same delays. Trainings on
        different numbers of ranks use independent random numbers.
        """
        return self.trajectory(ours).ranks == self.trajectory(theirs).ranks

    def short(self, setting: Setting, steps: int | None) -> Setting:
        """Return the setting of a short run of a few steps, which finds the time and the bytes of a step.

        The short run computes no gradients if neither times nor bytes depend on the gradients.
        """
        brief = (f"train.steps={steps or self.scale.steps}", "train.snapshots=1", "train.evaluate_replicas=false")
        needs_values = self.load(setting.config, setting.overrides).traits.depends_on_values
        source = TIMING_ONLY if setting.source == SIMULATED and not needs_values else setting.source
        return setting.but(source=source, overrides=(*setting.overrides, *brief))


@functools.cache
def normalises_batches(model: str) -> bool:
    return any(isinstance(module, _BatchNorm) for module in build(model, (3, 64, 64), 10).modules())
