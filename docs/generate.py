"""Text of pages that follows from the code: ``python -m docs.generate`` rewrites it between its markers.

A page says where generated text belongs, and the text is part of the page, so that a code host shows it, too::

    <!-- generated: options of grsgd -->
    <!-- end of generated -->

The kinds are in ``KINDS``. ``tests/integration/test_site.py`` holds the pages equal to the code.
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

import grsgd
from grsgd.algorithms import ALGORITHMS
from grsgd.algorithms.find import find
from grsgd.algorithms.outer_state import FeedbackOptions
from grsgd.cli.fields import allowed, default, resolved
from grsgd.cli.parser import make_parser
from grsgd.cli.reference import FURTHER_KEYS, section_of
from grsgd.config import Config, parse
from grsgd.testbed.__main__ import make_parser as testbed_parser
from grsgd.training.memory import bytes_per_parameter

DOCS = Path(__file__).parent
PACKAGES = ("coding", "grsgd", "experiments", "slurm")
FOR_MEMORY = {
    "model": {"name": "mlp"},
    "data": {"name": "synthetic"},
    "optimizer": {"name": "adamw"},
    "train": {"steps": 1},
}
"""The configuration of the table of memory, without its algorithm."""
BLOCK = re.compile(r"(<!-- generated: (\w+)(?: of (\w+))? -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def generated(text: str) -> str:
    """Return the text of a page with its generated blocks as they follow from the code."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{KINDS[found[2]](*filter(None, [found[3]]))}\n\n{found[4]}", text)


def options(algorithm: str) -> str:
    """Return the table of the options of an algorithm."""
    return table(["option", "default", "values", "meaning"], rows(find(algorithm).Options))


def keys() -> str:
    """Return a heading and a table for each section of a configuration, and one table for the keys in no section."""
    plain = [name for name in Config.model_fields if section_of(Config, name) is None]
    header = ["key", "default", "values", "meaning"]
    parts = ["## Keys in no section", table(header, [line for name in plain for line in row(Config, name)])]
    for name in Config.model_fields:
        if name not in plain:
            parts += [f"## [{name}]", table(header, rows(section_of(Config, name)))]
            if name in FURTHER_KEYS:
                parts.append(f"{FURTHER_KEYS[name]}.".replace("further keys", "Further keys", 1))
    return "\n\n".join(parts)


def memory() -> str:
    """Return the table of the bytes per parameter that each algorithm holds on 4 ranks, by itself and with AdamW, with
    models of float32 and of bfloat16."""
    lines = []
    for name, cls in sorted(ALGORITHMS.items()):
        numbers = []
        for dtype in ("float32", "bfloat16")[: 1 + cls.traits.trains_bfloat16]:
            sections = {"algorithm": {"name": name}, "dtype": dtype}
            held = bytes_per_parameter(parse(FOR_MEMORY | sections), ranks=4)
            numbers += [f"{held.algorithm:.3g}", f"{held.on_device:.3g}"]
        lines.append([f"`{name}`", cls.traits.family, *numbers, *["refused"] * (4 - len(numbers))])
    columns = [f"{what}, {dtype}" for dtype in ("float32", "bfloat16") for what in ("algorithm", "with AdamW")]
    return table(["algorithm", "family", *columns], lines)


def outer_state() -> str:
    """Return the table of the bytes per parameter with ``outer_state = "host"``, on 4 ranks with models in GPU
    memory."""
    lines = []
    for name, cls in sorted(ALGORITHMS.items()):
        if "outer_state" in cls.Options.model_fields:
            compressed = {"compression": "int8"} if issubclass(cls.Options, FeedbackOptions) else {}
            section = {"name": name, "outer_state": "host"} | compressed
            held = bytes_per_parameter(parse(FOR_MEMORY | {"algorithm": section}), ranks=4, on_gpu=True)
            options = "`compression = \"int8\"`" if compressed else ""
            numbers = [f"{number:.3g}" for number in (held.algorithm, held.outer, held.on_device)]
            lines.append([f"`{name}`", options, *numbers])
    places = ["algorithm, GPU memory", "algorithm, host memory", "with AdamW, GPU memory"]
    return table(["algorithm", "further options", *places], lines)


def commands() -> str:
    """Return a heading, the description, the arguments and the examples of each command."""
    (subparsers,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n\n".join(part for name, parser in subparsers.choices.items() for part in command(name, parser))


def command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the heading of a command and what its help says."""
    parser = testbed_parser() if name == "testbed" else parser
    actions = [action for action in parser._actions if action.dest != "help"]
    wanted = [metavar(action) for action in actions if not action.option_strings]
    wanted += ["-- MPIEXEC-ARGUMENTS"] if name == "testbed" else []
    yield f"## grsgd {name}"
    yield f"`{' '.join(['grsgd', name, '[options]', *wanted])}`"
    yield parser.description
    yield table(["argument", "meaning"], [[code(spelled(action)), meaning(parser, action)] for action in actions])
    for paragraph in (parser.epilog or "").strip().split("\n\n"):
        if paragraph.startswith("  "):
            yield "```bash\n" + re.sub("^  ", "", paragraph, flags=re.MULTILINE) + "\n```"
        elif paragraph:
            yield paragraph.replace("\n", " ").replace(". ", ".\n")


def spelled(action: argparse.Action) -> str:
    """Return an argument as one types it: ``-n N, --ranks N``."""
    if not action.option_strings:
        return metavar(action)
    value = "" if action.nargs == 0 else f" {metavar(action)}"
    return ", ".join(f"{option}{value}" for option in action.option_strings)


def metavar(action: argparse.Action) -> str:
    """Return the name of an argument's value, with brackets and dots if there may be none or several."""
    name = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(action.nargs, name)


def meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help of an argument, with its default filled in."""
    return cell(parser._get_formatter()._expand_help(action)) if action.help else ""


def rows(section: type[BaseModel]) -> list[list[str]]:
    """Return the rows of all options of a section."""
    return [line for name in section.model_fields for line in row(section, name)]


def row(section: type[BaseModel], name: str) -> list[list[str]]:
    """Return the row of an option, and further ones for the keys of the tables in it."""
    schema = section.model_json_schema()
    kind, field = schema["properties"][name], section.model_fields[name]
    lines = [[f"`{name}`", default_cell(field), values(kind, schema), cell(field.description)]]
    inner = kind.get("additionalProperties", {})
    if "$ref" in inner:
        table_of_rank = resolved(inner, schema)
        for key, inside in table_of_rank["properties"].items():
            wanted = "must be given" if key in table_of_rank["required"] else code(str(inside["default"]))
            lines.append([f"`{name}.RANK.{key}`", wanted, values(inside, schema), cell(inside["description"])])
    return lines


def values(kind: dict, schema: dict) -> str:
    """Return the cell of a table with the values that an option may have."""
    return cell(allowed(kind, schema).replace(" | ", ", "))


def default_cell(field) -> str:
    """Return the cell of a table with an option's default as TOML, or with words that say that there is no default."""
    said = default(field)
    return code(said.removeprefix(" = ")) if said.startswith(" = ") else said.strip(" ()")


def cell(text: str) -> str:
    """Return a text for a cell of a table: one line, no bar that would end the cell, no `<` that would begin a tag."""
    return text.replace("\n", " ").replace("|", "&#124;").replace("<", "&lt;").replace("*", r"\*")


def code(text: str) -> str:
    """Return code for a cell of a table; a bar within backticks means different things to different renderers."""
    return f"<code>{cell(text)}</code>" if "|" in text else f"`{text}`"


def table(header: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown."""
    ruler = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ruler, *lines])


def signature(name: str) -> str:
    """Return the signature of a public function of ``grsgd``, as its source has it, one parameter per line."""
    (definition,) = ast.parse(inspect.getsource(inspect.unwrap(getattr(grsgd, name)))).body
    returned = f" -> {ast.unparse(definition.returns)}" if definition.returns else ""
    parameters = "".join(f"    {parameter},\n" for parameter in parameters_of(definition.args))
    return f"```python\ndef {name}(" + (f"\n{parameters}" if parameters else "") + f"){returned}: ...\n```"


def modules() -> str:
    """Return a table of files for each package, with the first sentence of each file's docstring."""
    parts = []
    for folder in sorted({file.parent for name in PACKAGES for file in (DOCS.parent / name).rglob("*.py")}):
        described = [(file.name, purpose(file)) for file in sorted(folder.glob("*.py"))]
        if lines := [[f"`{name}`", cell(said)] for name, said in described if said]:
            parts += [f"### {folder.relative_to(DOCS.parent)}/", table(["file", "contents"], lines)]
    return "\n\n".join(parts)


def purpose(file: Path) -> str:
    """Return the first sentence of a file's docstring; "" if the file has none."""
    paragraph = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0]
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", " ".join(paragraph.replace("``", "`").split()))[0].rstrip(":")


def parameters_of(given: ast.arguments) -> list[str]:
    """Return the parameters of a function as text."""
    return re.split(r", (?![^\[(]*[\])])", ast.unparse(given)) if ast.unparse(given) else []


KINDS = {
    "options": options,
    "keys": keys,
    "commands": commands,
    "modules": modules,
    "signature": signature,
    "memory": memory,
    "outer_state": outer_state,
}
"""Kind of generated text: the function that returns it, given what stands behind ``of``."""


def main() -> int:
    """Rewrite the generated text of all pages; print the pages that have changed."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        if (new := generated(text)) != text:
            page.write_text(new)
            print(page.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
