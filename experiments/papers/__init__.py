"""The papers whose results are repeated; each paper has a folder with its trainings, claims, tables and figures."""

from pathlib import Path

YEARS = {"grsgd": 2023, "lasgd": 2022, "adsp": 2024, "adgossip": 2018, "cssgd": 2021}
"""Year of each paper, by the short name with which the names of the paper's targets and configurations begin.

A paper's folder is named by its short name and year.
"""

ROOT = Path(__file__).parents[2]


def module(paper: str) -> str:
    """Return the name of the Python package of a paper, given the paper's short name."""
    return f"{__name__}.{paper}_{YEARS[paper]}"


def folder(paper: str) -> Path:
    """Return the folder of a paper, given the paper's short name."""
    return Path(__file__).parent / f"{paper}_{YEARS[paper]}"


def toml(config: str) -> Path:
    """Return the TOML file of the configuration ``paper/name`` or ``experiment/name``."""
    owner, _, name = config.partition("/")
    return (folder(owner) if owner in YEARS else Path(__file__).parents[1] / owner) / f"{name}.toml"
