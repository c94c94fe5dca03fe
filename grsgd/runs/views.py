"""Views of one run in Python and in notebooks: one line of text, a small HTML page, and pandas data frames."""

import numpy as np
from tabulate import tabulate

from grsgd.errors import RunFileError
from grsgd.runs import measures
from grsgd.runs.columns import data_and_model
from grsgd.runs.ending import Ended
from grsgd.runs.measures import is_virtual
from grsgd.runs.metric import final_of, metric_of
from grsgd.runs.numbers import human_bytes, known_values, number, significant
from grsgd.runs.run_file import Run
from grsgd.runs.several import ranks_of
from grsgd.text import printable

ROWS = 5
"""Number of snapshots that a notebook shows of a run, counted from the last snapshot."""
BARE = ("run", "ended")
"""Names of the facts about a run whose value is shown without the name."""
FRAMES = ("curve", "ranks", "traffic")


def line(run: Run) -> str:
    """Return one line with the run's label, its kind of end, and its most important numbers."""
    try:
        facts = _facts(run)
    except (KeyError, TypeError, ValueError):  # facts are missing, because the run is not yet complete
        return f"<Run: {printable(str(run.attributes.get('algorithm')))}, incomplete>"
    return f"<Run: {'; '.join(value if key in BARE else f'{key} {value}' for key, value in facts.items())}>"


def page(run: Run) -> str:
    """Return HTML with a table of facts about the run, and a table of the curve's last `ROWS` snapshots."""
    time = run.curve["time"]
    names = [name for name, values in run.curve.items() if values.shape == time.shape and _is_known(values)]
    header = [f"{name} [s]" if name == "time" else name for name in names]
    rows = [[_cell(run.curve[name][row]) for name in names] for row in range(len(time))[-ROWS:]]
    tables = [tabulate(_facts(run).items(), tablefmt="html", disable_numparse=True)]
    if rows:
        tables.append(tabulate(rows, header, tablefmt="html", disable_numparse=True))
    return "\n".join(tables)


def _facts(run: Run) -> dict[str, str]:
    attributes = run.attributes
    ended, reason = attributes["ended"], printable(attributes["reason"], 200)
    facts = {
        "run": printable(f"{attributes['label']}, {ranks_of(run)}, {data_and_model(run)}, seed {attributes['seed']}"),
        "ended": ended if ended == Ended.COMPLETED else f"{ended}: {reason}",
    }
    metric, loss = metric_of(run), measures.last_value(run, "train_loss")
    ends = ((final_of(run), "final"), (measures.best(run), "best"))
    if values := [f"{metric.text(value)} {name}" for value, name in ends if known_values([value])]:
        facts[metric.words] = ", ".join(values)
    elif known_values([loss]):
        facts["training loss"] = significant(loss)
    facts["simulated time" if is_virtual(run) else "time"] = f"{number(measures.seconds(run))} s"
    return facts | {"sent": human_bytes(measures.bytes_sent(run)), "snapshots": str(len(run.curve["time"]))}


def frame(run: Run, which: str = "curve"):
    """Return the table ``which`` (one of ``FRAMES``) of a run as a pandas.DataFrame; see `Run.to_pandas`."""
    if which not in FRAMES:
        raise RunFileError(f"to_pandas({which!r}): the allowed tables are {', '.join(map(repr, FRAMES))}")
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas() needs the package pandas: pip install pandas") from None
    if which == "traffic":
        ranks = np.indices(run.traffic["sent"].shape).reshape(2, -1)
        columns = {"sender": ranks[0], "receiver": ranks[1]}
        pairs = [name for name, values in run.traffic.items() if values.shape == run.traffic["sent"].shape]
        return pandas.DataFrame(columns | {name: run.traffic[name].ravel() for name in pairs})
    arrays, like = getattr(run, which), run.curve["time"] if which == "curve" else run.ranks["steps"]
    columns = {name: values for name, values in arrays.items() if values.shape == like.shape}
    return pandas.DataFrame(columns).rename_axis("snapshot" if which == "curve" else "rank")


def figure(run: Run):
    """Return the figure that ``grsgd plot`` draws of ``run``."""
    from grsgd.runs.plot import plot

    return plot([run])


def _is_known(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(known_values(values))


def _cell(value: np.generic) -> str:
    return f"{value:.4g}" if isinstance(value, np.floating) else str(value)
