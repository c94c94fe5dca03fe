"""Base class of algorithms that average over all ranks at once, by the all-reduce that the option ``variant`` names.

A schedule is a generator that yields each object it waits for.
"""

from dataclasses import replace

from grsgd.algorithms.allreduce_trial import AUTO, choose_variant
from grsgd.algorithms.base import Algorithm
from grsgd.comm.allreduce import ALLREDUCE, ON_ONE_HOST, OUTLIVES_DEATHS, THROUGH_MEMORY, get_ready, in_place
from grsgd.models.flat import Flat


class ByAllreduce(Algorithm, name=None):
    """Base class of algorithms that average models or gradients over all ranks by an all-reduce. The options of a class
    derived from `ByAllreduce` need the field ``variant: Variant = Field("ring", description=VARIANT_MEANING)``."""

    def __init__(self, options, replica, optimizer, context):
        super().__init__(options, replica, optimizer, context)
        get_ready(self.comm, options.variant, self.x.array)

    @classmethod
    def traits_of(cls, options):
        traits = super().traits_of(options)
        return replace(
            traits,
            survives_deaths=options.variant in OUTLIVES_DEATHS and traits.survives_deaths,
            one_host=options.variant in ON_ONE_HOST,
            host_memory=options.variant in THROUGH_MEMORY,
        )

    @classmethod
    def choose_options(cls, options, trial):
        chosen, reasons = yield from super().choose_options(options, trial)
        if options.variant == AUTO:
            comm, driver = trial.context.comm, trial.context.driver
            chosen["variant"], reasons["allreduce"] = yield from choose_variant(comm, driver, trial.like_parameters())
        return chosen, reasons

    @classmethod
    def option_behind(cls, options, trait):
        refused = {"one_host": ON_ONE_HOST, "host_memory": THROUGH_MEMORY}.get(trait)
        if refused is None:
            return super().option_behind(options, trait)
        return f'variant = "{options.variant}"', ", ".join(variant for variant in ALLREDUCE if variant not in refused)

    def in_place(self, flat: Flat):
        """Generator, called on all ranks at once in `start`, that moves the array of ``flat`` to the memory in which
        the all-reduce makes the fewest copies, and returns ``flat``."""
        return in_place(self.comm, flat, self.options.variant)

    def allreduce(self, array):
        """Generator that replaces ``array`` by its mean over all ranks, in place."""
        return ALLREDUCE[self.options.variant](self.comm, array, scale=1 / self.comm.size)
