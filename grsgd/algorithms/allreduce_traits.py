"""The traits that an algorithm has by the variant of its all-reduce."""

from dataclasses import replace

from grsgd.algorithms.base import Traits
from grsgd.comm.allreduce import ON_ONE_HOST, OUTLIVES_DEATHS, THROUGH_MEMORY


def with_variant(traits: Traits, variant: str) -> Traits:
    """Return the traits of an algorithm that averages by this variant, of those that it has otherwise."""
    return replace(
        traits,
        survives_deaths=variant in OUTLIVES_DEATHS and traits.survives_deaths,
        one_host=variant in ON_ONE_HOST,
        host_memory=variant in THROUGH_MEMORY,
    )
