"""What is changed in the code: mutants drawn at random, those written down by hand, and known equivalent ones.

A mutant is a file of the project with one small fault. `dangerous.toml` has faults of this kind of program, such as a
buffer written while its message is under way; `equivalent.toml` has mutants that no test can tell from the code, with
the reason.
"""

import ast
import copy
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

FOLDERS = ("grsgd/comm", "grsgd/algorithms", "grsgd/training", "grsgd/own_loop", "coding", "grsgd/simulator")
FILES = ("grsgd/models/replica.py", "grsgd/models/mixing.py", "grsgd/runs/ending.py")
FILES += ("grsgd/job/prepare.py", "grsgd/job/run.py", "grsgd/job/conclusion.py")
UNREACHABLE = (
    *("coding/gpu.py", "grsgd/comm/gpu/memory.py", "grsgd/training/device.py"),
    *("grsgd/simulator/calibration/calibrate.py", "grsgd/simulator/calibration/network_file.py"),
)
"""Files that no unit test can run."""

SWAPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
WORDS = {"print", "warn", "warning", "info", "debug"}
"""Functions whose arguments are only read by people."""


@dataclass(frozen=True)
class Mutant:
    """A file with one change: ``before`` in ``lines`` of ``path`` becomes ``after``, which makes it ``text``."""

    name: str
    path: str
    lines: range
    """Those of the statement."""
    at_import: bool
    """Whether the statement runs when the module is imported, not in a function."""
    before: str
    after: str
    text: str
    wrong: str = ""

    def __str__(self):
        change = f"{' '.join(self.before.split())}  ->  {' '.join(self.after.split())}"
        return f"{self.path}:{self.lines[0]}  {change}" + (f"  ({self.wrong})" if self.wrong else "")


@dataclass(frozen=True)
class Site:
    """A place in the code: what it may become, by operator."""

    begin: int
    end: int
    lines: range
    at_import: bool
    position: str
    becomes: tuple[tuple[str, str], ...]


def files() -> list[str]:
    """The files to be changed, as paths from the root of the project."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [*(path.relative_to(ROOT).as_posix() for path in found), *FILES]
    return [path for path in paths if path not in UNREACHABLE]


def drawn(paths: list[str], number: int, seed: int) -> list[Mutant]:
    """So many mutants, spread over the files in proportion to their places, and drawn at random within each."""
    places = {path: list(sites((ROOT / path).read_text())) for path in paths}
    everything = sum(map(len, places.values()))
    mutants, due = [], 0.0
    for path, here in places.items():
        chance = random.Random(f"{seed} {path}")
        chance.shuffle(here)
        due += number * len(here) / max(everything, 1)
        for site in here[: round(due) - len(mutants)]:
            operator, after = chance.choice(site.becomes)
            mutants.append(changed(path, site, operator, after))
    return mutants


def all_of(path: str) -> Iterator[Mutant]:
    """Every mutant that could be drawn from a file."""
    for site in sites((ROOT / path).read_text()):
        for operator, after in site.becomes:
            yield changed(path, site, operator, after)


def changed(path: str, site: Site, operator: str, after: str) -> Mutant:
    text = (ROOT / path).read_bytes()
    before = text[site.begin : site.end].decode()
    mutated = (text[: site.begin] + after.encode() + text[site.end :]).decode()
    name = f"{path}:{site.position}:{operator}"
    return Mutant(name, path, site.lines, site.at_import, before, after, mutated)


def dangerous(paths: list[str], entries: list[dict] | None = None) -> list[Mutant]:
    """Those written down by hand; raises ValueError where the text is not found exactly once."""
    entries = tomllib.loads((HERE / "dangerous.toml").read_text()).get("mutant", []) if entries is None else entries
    mutants = []
    for entry in entries:
        path, before, after = entry["file"], entry["before"], entry["after"]
        text = (ROOT / path).read_text()
        if text.count(before) != 1:
            raise ValueError(f"dangerous.toml: {entry['name']}: {before!r} is {text.count(before)} times in {path}")
        begin = text.index(before)
        first, length = text.count("\n", 0, begin) + 1, before.rstrip("\n").count("\n") + 1
        mutated = text.replace(before, after)
        compile(mutated, path, "exec")
        lines = range(first, first + length)
        at_import = not any(line in lines for line in lines_of_functions(text))
        mutants.append(Mutant(entry["name"], path, lines, at_import, before, after, mutated, entry["wrong"]))
    names = [mutant.name for mutant in mutants]
    if len(set(names)) < len(names):
        raise ValueError(f"dangerous.toml: twice: {sorted({name for name in names if names.count(name) > 1})}")
    return [mutant for mutant in mutants if mutant.path in paths]


def equivalent(entries: list[dict] | None = None) -> dict[str, str]:
    """The reason for each known equivalent mutant, by name; raises ValueError where an entry fits none."""
    entries = tomllib.loads((HERE / "equivalent.toml").read_text()).get("mutant", []) if entries is None else entries
    reasons = {}
    for entry in entries:
        path, line = entry["file"], entry["line"]
        text = (ROOT / path).read_text().splitlines()
        names = []
        for mutant in all_of(path):
            _, number, column, _ = mutant.name.split(":")
            whole = text[int(number) - 1]
            if (mutant.before, mutant.after, whole.strip()) == (entry["before"], entry["after"], line):
                place = len(whole.lstrip()) - len(whole) + int(column)
                if "column" not in entry or place == entry["column"]:
                    names.append(mutant.name)
        if not names:
            raise ValueError(f"equivalent.toml: no mutant of {path} changes {entry['before']!r} in {line!r}")
        reasons |= dict.fromkeys(names, entry["reason"])
    return reasons


def lines_of_functions(text: str) -> set[int]:
    """The lines that run when a function is called."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    return {
        line
        for function in functions
        for part in (function.body if isinstance(function, ast.FunctionDef) else [function.body])
        for line in range(part.lineno, part.end_lineno + 1)
    }


@cache
def sites(text: str) -> tuple[Site, ...]:
    """The places of a file where something can be changed."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def visit(node, lines, at_import):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            lines = range(node.lineno, max(node.lineno, body[0].lineno - 1 if body else node.end_lineno) + 1)
        becomes = tuple(changes(node))
        if becomes:
            where = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            begin = starts[where.lineno - 1] + where.col_offset
            end = starts[where.end_lineno - 1] + where.end_col_offset
            position = f"{where.lineno}:{where.col_offset}"
            yield Site(begin, end, lines, at_import, position, becomes)
        for name, child in parts(node):
            if isinstance(node, ast.FunctionDef | ast.Lambda):  # a default is seen by who calls the function
                whole = range(node.lineno, node.end_lineno + 1)
                yield from visit(child, whole if name == "args" else lines, False)
            else:
                yield from visit(child, lines, at_import)

    return tuple(visit(ast.parse(text), range(0), True))


def parts(node) -> Iterator[tuple[str, ast.AST]]:
    """What lies in a node, without what only people read: documentation, types, words and representations."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in WORDS:
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "keywords") and isinstance(
            node, ast.arg | ast.FunctionDef | ast.AnnAssign | ast.ClassDef
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield name, child


def changes(node) -> Iterator[tuple[str, str]]:
    """Operator and text in place of the node; of a condition, in place of the condition."""

    def with_(**fields) -> str:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        text = ast.unparse(other)
        return f"({text})" if isinstance(node, ast.expr) and not isinstance(node, ast.Call | ast.Constant) else text

    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                yield f"compare{i}", with_(ops=[*node.ops[:i], SWAPPED[type(op)](), *node.ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            yield "operator", with_(op=SWAPPED[type(op)]())
        case ast.AugAssign(op=op):
            yield "removed", "pass"
            if type(op) in SWAPPED:
                yield "operator", with_(op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "plus", f"({value + 1})"
            yield "minus", f"({value - 1})"
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition", f"(not ({ast.unparse(node.test)}))"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "result", "return None"
        case ast.Expr(value=ast.Yield()):
            yield "yield", "yield ()"
        case ast.Expr(value=ast.YieldFrom()):
            yield "yield", "yield from ()"
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete():
            yield "removed", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removed", "pass"
        case ast.Break():
            yield "jump", "continue"
        case ast.Continue():
            yield "jump", "break"
        case ast.Slice():
            if node.lower is not None:
                yield "lower", ast.unparse(ast.Slice(None, node.upper, node.step))
            if node.upper is not None:
                yield "upper", ast.unparse(ast.Slice(node.lower, None, node.step))
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED_NAMES:
            yield "function", with_(func=ast.Name(SWAPPED_NAMES[name]))
        case ast.Call(args=[first, second, *rest]) if (
            ast.Starred not in (type(first), type(second)) and ast.dump(first) != ast.dump(second)
        ):
            yield "arguments", with_(args=[second, first, *rest])
