"""The papers: a folder each, with its trainings, claims, and tables and figures."""

from pathlib import Path

YEARS = {"grsgd": 2023, "lasgd": 2022, "adsp": 2024, "adgossip": 2018, "cssgd": 2021}
"""The papers by the name that their targets and configurations begin with; with the year it is that of the folder."""

ROOT = Path(__file__).parents[2]


def module(paper: str) -> str:
    """Return the package of a paper."""
    return f"{__name__}.{paper}_{YEARS[paper]}"


def folder(paper: str) -> Path:
    return Path(__file__).parent / f"{paper}_{YEARS[paper]}"


def toml(config: str) -> Path:
    """Return the file of a configuration ``paper/name``, or ``experiment/name``."""
    owner, _, name = config.partition("/")
    return (folder(owner) if owner in YEARS else Path(__file__).parents[1] / owner) / f"{name}.toml"
