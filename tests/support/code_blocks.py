"""Blocks of code on the pages: README.md and the folder docs."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NOT_CHECKED = re.compile(r"<!-- not checked: .+ -->\n+ *$")


class Block(NamedTuple):
    """A block of code, with the page and the number of the line that it is on."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """Return the blocks of code of all pages, without the blocks that a comment excludes from checks."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if not NOT_CHECKED.search(text[: block.start()]):
                line = text[: block.start()].count("\n") + 1
                code = re.sub(f"^{block[1]}", "", block[3], flags=re.MULTILINE)
                found.append(Block(str(page.relative_to(ROOT)), line, block[2], code))
    return found


ALL = blocks()
