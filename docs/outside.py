"""Hook of MkDocs: files of the repository that pages link to, and that lie outside of docs, become pages of the site.

A link from ``docs/how-to/slurm.md`` to ``../../slurm/site.sh`` works on a code host. A reader of the site may have
neither network nor checkout, so the site has a page ``repository/slurm/site.sh`` with the content of that file.
Markdown is shown as Markdown, with the files that it links to, other files are shown as code, and folders as lists of
names.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?![a-z]+:|#|/)([^)\s#]+)")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".sbatch": "bash"}


def on_files(files, config):
    """Add a page for each file outside of docs that a page links to, directly or by way of such a page."""
    waiting = {target for page in files.documentation_pages() for target in links(page.content_string, source(page))}
    done = set()
    while waiting:
        target = waiting.pop()
        done.add(target)
        text = shown(target)
        content = f"---\nsearch:\n  exclude: true\n---\n\n{rewritten(text, target)}"
        files.append(File.generated(config, str(uri(target)), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
        waiting |= links(text, target) - done
    return files


def on_page_markdown(markdown, page, config, files):
    """Return a page with its links to files outside of docs as links to the pages that show these files."""
    return markdown if page.file.generated_by else rewritten(markdown, source(page.file))


def source(page: File) -> Path:
    """Return where a page of docs lies in the repository."""
    return Path("docs", page.src_uri)


def links(text: str, place: Path) -> set[Path]:
    """Return the files outside of docs, and folders, that a text at a place of the repository links to."""
    targets = {Path(os.path.normpath(place.parent / link)) for link in LINK.findall(text)}
    return {target for target in targets if (ROOT / target).exists() and uri(target).parts[0] == "repository"}


def uri(target: Path) -> Path:
    """Return the place in the site of a file or folder of the repository."""
    if target.parts[0] == "docs" and (ROOT / target).is_file():
        return target.relative_to("docs")
    return Path("repository", target if target.suffix == ".md" else f"{target}.md")


def rewritten(text: str, place: Path) -> str:
    """Return a text at a place of the repository with its relative links as the site needs them."""

    def link(found: re.Match) -> str:
        target = Path(os.path.normpath(place.parent / found[1]))
        return f"]({os.path.relpath(uri(target), uri(place).parent)}" if (ROOT / target).exists() else found[0]

    return LINK.sub(link, text)


def shown(target: Path) -> str:
    """Return the text of the page that shows a file or a folder."""
    path = ROOT / target
    if target.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        names = sorted(file.name for file in path.iterdir() if file.name[0] != "_")
        return "\n".join([f"# {target}", "", *(f"- `{name}`" for name in names)])
    return f"# {target}\n\n````{LANGUAGES.get(target.suffix, 'text')}\n{path.read_text()}\n````\n"
