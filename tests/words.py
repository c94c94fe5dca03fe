"""Count, per folder, the habits of writing that make a reader stop: ``python -m tests.words [PATH ...]``.

The command lists the sentences with their places. ``--write`` lowers the counts in ``tests/words.toml``, which
``tests/integration/test_words.py`` allows no folder to exceed. CONTRIBUTING.md has the rule behind the habits.
"""

import argparse
import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import tomli_w

ROOT = Path(__file__).parents[1]
COUNTS = ROOT / "tests" / "words.toml"
LONGEST = 30
"""Words of a sentence that is not counted as long. Authors aim at 25."""
LEAST = 5
"""Words of a string in code that is read as a sentence."""

HABITS = {
    "beginning": re.compile(
        r"^(?:Of|By|With|Where|Those|As|What|How|Which|That|To|In|For|When|While|Beside|Who|Whose|From|On|Until|And|So)\b"
    ),
    "pronoun": re.compile(
        r"\bthose (?:of|that|which|who|whose|in|on|at|from|with|without|before|after)\b"
        r"|\bwhat (?:it|is|was|are|were|has|have|they|a|an|the|comes|goes|does|would|can|others?|each|all|one)\b"
        r"|\b(?:the )?ones? (?:that|which|who|whose)\b"
        r"|\bthat of\b",
        re.IGNORECASE,
    ),
    "so many": re.compile(r"\bso (?:many|much|few|long|often)\b(?! as\b)(?! that\b)", re.IGNORECASE),
    "phrase": re.compile(
        r"\b(?:held|holds?|holding) (?:\w+ ){0,3}?against\b|\btak(?:es?|en|ing) of\b"
        r"|\bwhoever\b|\b(?:no|some)body\b|\bbeside\b",
        re.IGNORECASE,
    ),
    "long": None,
}
"""Habit: the words that show it in a sentence; in docstrings alone: beginning; long is by the number of words."""


class Sentence(NamedTuple):
    """A sentence, where its paragraph begins, and whether it is the first sentence of a docstring."""

    file: Path
    line: int
    text: str
    is_first: bool


class Paragraph(NamedTuple):
    """A piece of text, the line on which it begins, and whether it begins a docstring."""

    line: int
    text: str
    is_docstring: bool


def habits_of(sentence: Sentence) -> list[str]:
    """Return the habits that a sentence shows."""
    found = [name for name, words in HABITS.items() if words and name != "beginning" and words.search(sentence.text)]
    if sentence.is_first and HABITS["beginning"].search(sentence.text):
        found.append("beginning")
    return [*found, "long"] if len(re.findall(r"\w[\w'’.,-]*", sentence.text)) > LONGEST else found


def sentences(file: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page, or of the docstrings, comments and strings of a module."""
    for paragraph in (page if file.suffix == ".md" else module)(file.read_text()):
        text = re.sub(r"``[^`]*``|`[^`\n]*`", "code", " ".join(paragraph.text.split()))
        for number, piece in enumerate(re.split(r"(?<=[.!?:;])\s+(?=[A-Z`*(\"'\d]|code\b)|(?<=[;:])\s", text)):
            yield Sentence(file, paragraph.line, piece, paragraph.is_docstring and number == 0)


def page(text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs, items of lists and cells of tables of a Markdown page, without code and generated text."""
    hidden = "```.*?```|<!-- generated: .*?<!-- end of generated -->|<!--.*?-->"
    text = re.sub(hidden, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    line = 1
    for piece in re.split(r"(\n\s*\n|\n(?=\s*(?:[-*#|>]|\d+\. )))", text):
        for cell in re.split(r"(?<!\\)\|", piece) if piece.lstrip().startswith("|") else [piece]:
            if cell.strip():
                yield Paragraph(line, cell, False)
        line += piece.count("\n")


def module(text: str) -> Iterator[Paragraph]:
    """Yield the paragraphs of the docstrings, the comments, and the strings of several words of a Python module."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    in_f_strings = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = "".join(value.value if isinstance(value, ast.Constant) else "0" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in in_f_strings:
            words = node.value
        else:
            continue
        is_docstring = id(node) in docstrings
        if is_docstring or len(re.findall(r"[A-Za-z]{2,} ", words)) >= LEAST:
            for number, piece in enumerate(re.split(r"\n\s*\n|\n(?=\s*[*`]*\w+[`]*: )", words)):
                yield Paragraph(node.lineno, piece, is_docstring and number == 0)
    comments = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.COMMENT]
    for comment in comments:
        yield Paragraph(comment.start[0], comment.string.lstrip("#! "), False)


def read_files(paths: list[Path] | None = None) -> list[Path]:
    """Return the pages and modules below ``paths``, by default all that are written by hand."""
    if paths is None:
        paths = [ROOT / name for name in ("grsgd", "coding", "experiments", "slurm", "docs", "tests/support")]
        paths += [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGES", "SECURITY", "CODE_OF_CONDUCT")]
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    return [file for file in found if file.suffix in (".py", ".md") and "docs/results" not in str(file)]


def folder(file: Path) -> str:
    """Return the name under which a file is counted: two folders deep in the packages, and docs as a whole.

    A file outside of the project is counted under its own path.
    """
    if ROOT not in file.resolve().parents:
        return str(file)
    parts = file.resolve().relative_to(ROOT).parts
    is_whole = len(parts) == 1 or parts[0] in ("docs", "coding", "slurm")
    return parts[0] if is_whole else "/".join(parts[: min(2, len(parts) - 1)])


def count(files: list[Path], show: Callable[[str], None] = lambda line: None) -> dict[str, Counter]:
    """Return, per folder, how many sentences show each habit; ``show`` gets a line for each of these sentences."""
    counts: dict[str, Counter] = {}
    for file in files:
        of_folder = counts.setdefault(folder(file), Counter())
        for sentence in sentences(file):
            if habits := habits_of(sentence):
                show(f"{sentence.file}:{sentence.line}: {', '.join(habits)}: {sentence.text}")
                of_folder.update(habits)
    return counts


def allowed() -> dict[str, dict[str, int]]:
    """Return the counts that no folder may exceed."""
    return tomllib.loads(COUNTS.read_text())


def write(counts: dict[str, Counter]):
    """Lower the counts that no folder may exceed to ``counts``."""
    before = allowed() if COUNTS.exists() else {}
    lowered = {
        name: {habit: min(found[habit], before.get(name, {}).get(habit, found[habit])) for habit in HABITS}
        for name, found in sorted(counts.items())
    }
    head = "# Sentences that show a habit, per folder: they may only fall. Written by python -m tests.words --write\n"
    COUNTS.write_text(head + tomli_w.dumps(lowered))


def main(arguments: list[str] | None = None):
    parser = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__.partition(":")[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders, by default all")
    parser.add_argument("--write", action="store_true", help="lower the counts in tests/words.toml to those of today")
    options = parser.parse_args(arguments)
    if options.write:
        return write(count(read_files()))
    for name, found in count(read_files(options.paths or None), print).items():
        print(f"{name}: " + ", ".join(f"{habit} {found[habit]}" for habit in HABITS))


if __name__ == "__main__":
    main()
