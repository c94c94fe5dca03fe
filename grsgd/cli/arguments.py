"""Conversion and checks of the values of command-line options."""

import secrets
import tomllib
from datetime import datetime
from pathlib import Path

from grsgd.errors import ConfigError, RunFileError


def load_config(options):
    """Return the configuration that a command's ``options`` name, with the overrides of ``--set`` applied. Raises
    ConfigError if the configuration file, a key or a value is wrong."""
    from grsgd import config

    return config.load(options.config, overrides(options))


def overrides(options) -> list[str]:
    """Return the ``KEY=VALUE`` settings in the options ``--set`` and ``--data-dir``, which replace keys of the
    configuration."""
    return [*options.set, *([f"data.dir={options.data_dir!r}"] if options.data_dir else [])]


def check_at_least(option: str, value: int, least: int):
    """Raise ConfigError if ``value``, the value of the command-line option ``option``, is below ``least``."""
    if value < least:
        raise ConfigError(f"{option} {value}: must be {least} or more")


def path_or_none(text: str | None) -> Path | None:
    """Return the value ``text`` of an option as a Path; None if the option is not given."""
    return None if text is None else Path(text)


def in_list(words: str) -> list[str]:
    """Return the list of words in the text ``words``, which are separated by commas. Blanks around each of these words
    are removed."""
    return [word.strip() for word in words.split(",")] if words else []


def loggers(options, config) -> list:
    """Return the loggers to which a run of ``config`` passes its numbers, such as the loss, while it trains. Raises
    ConfigError or RunFileError if a logger cannot be made."""
    from grsgd.runs.loggers import CsvLogger, TensorBoardLogger

    found = [CsvLogger(options.csv)] if options.csv else []
    found += [TensorBoardLogger(options.tensorboard)] if options.tensorboard else []
    if options.wandb or options.mlflow:
        from grsgd.integrations.trackers import trackers

        resume, kept = (getattr(options, name, None) for name in ("resume", "checkpoint"))
        found += trackers(options.wandb, options.mlflow, tomllib.loads(config.toml()), kept or resume, bool(resume))
    return found


def default_out(algorithm: str) -> str:
    """Return a new, unique path for a run file in the folder ``results``. Raises RunFileError if the folder ``results``
    cannot be made."""
    try:
        Path("results").mkdir(exist_ok=True)
    except OSError as error:
        raise RunFileError(f"results: {error.strerror}: name another file with --out") from None
    return f"results/{algorithm}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}.h5"
