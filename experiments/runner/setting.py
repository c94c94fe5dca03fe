"""A setting: a training with its number of ranks, its conditions, and the source of its times."""

from dataclasses import dataclass, replace

from experiments.runner.run_spec import SIMULATED, Link


@dataclass(frozen=True)
class Scenario:
    """A condition of runs: which ranks are slow, or whether links are slow.

    overrides: ``key=value`` overrides of all runs of the scenario. slow_links: True if every link has the scale's slow
    rate. slow_hosts: pairs of a rank and the factor by which its processor is slower. In a measured run the processor
    of a slow host is really slower; in a simulated run the computations of its rank take longer.
    """

    name: str
    overrides: tuple[str, ...] = ()
    slow_links: bool = False
    slow_hosts: tuple[tuple[int, float], ...] = ()


EQUAL = Scenario("equal ranks, fast links")
STRAGGLER = Scenario("one rank 4 times slower", ("stragglers.slowdown.1=4.0",))
"""Scenario in which one rank sleeps in each step, so that its processor is free for communication."""
SLOW_HOST = Scenario("one host 4 times slower", slow_hosts=((1, 4.0),))
"""Scenario in which one host has a slow processor, so that its rank computes and communicates slowly."""
SLOW_LINKS = Scenario("slow links", slow_links=True)


@dataclass(frozen=True)
class Setting:
    """A training with its number of ranks and the source of its times, but without its seed and learning rate.

    config: name of the configuration, ``paper/name``, as for ``papers.toml``. ranks: number of ranks that train; a
    server is one more rank. source: a source of times in ``run_spec``. overrides: ``key=value`` texts that change the
    configuration. link: the links of the run; None for the links of the scale and the scenario. compute: computing
    time of a step in simulated time, as for ``grsgd simulate``; None for the measured time of the model. tuned_with:
    overrides of the trainings that tune the learning rate.
    """

    config: str
    ranks: int
    source: str = SIMULATED
    scenario: Scenario = EQUAL
    overrides: tuple[str, ...] = ()
    link: Link | None = None
    compute: str | None = None
    tuned_with: tuple[str, ...] = ()

    def but(self, **changes) -> "Setting":
        """Return a copy of the setting with some fields replaced."""
        return replace(self, **changes)
