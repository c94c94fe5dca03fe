"""Documents and docstrings: the modules, files and folders that they name exist."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    file for folder in ("", "docs/**/", "experiments/**/", "tests/**/", "slurm/") for file in ROOT.glob(f"{folder}*.md")
)

PACKAGES = ("grsgd", "coding", "experiments", "tests", "slurm", "docs")
SOURCES = sorted(file for package in set(PACKAGES) - {"tests"} for file in (ROOT / package).rglob("*.py"))
FILE = re.compile(r"[\w./-]+\.(?:py|sh|sbatch|j2|md)")
EXAMPLES = {"mine.py", "test_mine.py", "train.py", "page.md", "results/validation/table.md"}
"""Files of a user's own, and files that a command makes."""
ENTRY_POINTS = {f"grsgd.{kind}" for kind in ("algorithms", "models", "data", "tasks", "schedules")}
"""Names of groups of entry points, which look like modules."""
OLD_NAMES = ROOT / "CHANGES.md"


def headings(document: Path) -> set[str]:
    """The headings of a document, as links name them: those that a repository's pages and the site name alike."""
    lines = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    in_repositories = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
    return in_repositories & {slugify(line, "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    prose = re.sub(r"```.*?```|`[^`]*`", "", document.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:", link):
            path, _, heading = link.partition("#")
            target = document.parent / path if path else document
            assert target.exists(), link
            assert not heading or heading in headings(target), link


def test_modules_that_are_to_be_run_are_there():
    files = {*DOCUMENTS, ROOT / "Makefile", *ROOT.glob("slurm/*.*")} - {OLD_NAMES}
    text = "\n".join(file.read_text() for file in files)
    modules = set(re.findall(r"python -m ((?:grsgd|experiments|tests)(?:\.\w+)*)", text))
    assert "grsgd" in modules and "experiments.tables" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


@cache
def words_of(module: Path) -> set[str]:
    return set(re.findall(r"\w+", module.read_text()))


def is_there(dotted: str) -> bool:
    """Whether a dotted name leads to a package or a module, or to a word of one."""
    parts, place = dotted.split("."), ROOT
    for number, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module = place / f"{part}.py"
        if module.exists():
            return parts[number + 1 : number + 2] == [] or parts[number + 1] in words_of(module)
        return (place / "__init__.py").exists() and part in words_of(place / "__init__.py")
    return True


def names_in(text: str) -> set[str]:
    """The dotted names of modules, and of what is in them, in a text."""
    found = set(re.findall(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:\.[A-Za-z_]\w*)+\b(?![/-])", text))
    is_file = re.compile(rf"{FILE.pattern}|.*\.(?:toml|h5|conf)").fullmatch
    return {name for name in found - ENTRY_POINTS if not is_file(name)}


def paths_in(text: str) -> set[str]:
    """The paths in a text that begin with a folder of the project, but for those with a placeholder in capitals."""
    found = re.findall(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})/[\w./-]+[\w/]", text)
    return {path for path in found if not re.search(r"/[A-Z]+(/|$)", path)}


def prose_of(file: Path) -> str:
    """A page, or the docstrings and comments of a source file."""
    text = file.read_text()
    return text if file.suffix == ".md" else "\n".join(re.findall(r'""".*?"""|#.*?$', text, re.DOTALL | re.MULTILINE))


def test_modules_and_files_that_pages_docstrings_and_comments_name_exist():
    wrong = {}
    for file in {*DOCUMENTS, *SOURCES} - {OLD_NAMES}:
        text = prose_of(file)
        missing = [name for name in names_in(text) if not is_there(name)]
        if missing := [*missing, *(path for path in paths_in(text) if not (ROOT / path).exists())]:
            wrong[str(file.relative_to(ROOT))] = missing
    assert wrong == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_page_names_exist(document):
    """A name without a folder is that of some file of the project, in a folder that the paragraph names, if any."""
    prose = re.sub(r"```.*?```", "", document.read_text() if document != OLD_NAMES else "", flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=[|#-])", prose):
        spans = re.findall(r"`([^`\n]+)`", paragraph)
        folders = [ROOT / span for span in spans if "/" in span and (ROOT / span).is_dir()]
        for name in {span for span in spans if FILE.fullmatch(span)} - EXAMPLES:
            if "/" in name:
                near = (document.parent, ROOT, ROOT / "grsgd", ROOT / "tests")
                assert any((folder / name).exists() for folder in near), name
            else:
                assert any(any(folder.rglob(name)) for folder in folders or [ROOT / each for each in PACKAGES]), name


PACKAGE_FILES = [file for file in SOURCES if file.name == "__init__.py"]


@pytest.mark.parametrize("file", PACKAGE_FILES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_modules_that_a_package_says_it_has_exist(file):
    description = ast.get_docstring(ast.parse(file.read_text())) or ""
    code = re.sub(r'^""".*?"""', "", file.read_text(), flags=re.DOTALL)
    there = {path.stem for path in file.parent.iterdir()} | set(re.findall(r"\w+", code))
    assert [name for name in re.findall(r"(?<!`)`(\w+)`(?!`)", description) if name not in there] == []


PACKAGES_SECTION = re.search(
    r"## Where things are\n(.*?)\n## ", (ROOT / "docs" / "reference" / "architecture.md").read_text(), re.DOTALL
)[1]
ARCHITECTURE = re.findall(r"^\| (`.*?`) \| (.*) \|$", PACKAGES_SECTION, re.MULTILINE)


def test_the_table_of_the_architecture_names_every_package():
    """And the packages in it, and every module that belongs to none."""
    names = {name for row, _ in ARCHITECTURE for name in re.findall(r"`([\w./]+)`", row)}
    named = {name.strip("/").removeprefix("grsgd/") for name in names}
    there = {path.name for path in (ROOT / "grsgd").iterdir() if path.name[0] not in "_."}
    there |= {str(path.parent.relative_to(ROOT / "grsgd")) for path in (ROOT / "grsgd").glob("*/*/__init__.py")}
    assert there <= named, "packages and modules of grsgd"
    assert named - there <= {"coding", "experiments", "slurm"}
