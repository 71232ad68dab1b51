"""What the documentation site needs beyond mkdocs: links to files outside `docs/` lead somewhere on it, too.

A page of `docs/` links to a file of the repository as on a code host: `../dags/customers_daily.py`. The site
has a page `source/dags/customers_daily.py` for each file that is linked to, and only for these; README.md is
its first page. Pages are also published as the Markdown that they are, for who reads `llms.txt`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
_LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = sorted(DOCS.rglob("*.md"))
    seen = set(waiting)
    while waiting:
        for target in _linked_files(waiting.pop()) - seen:
            seen.add(target)
            files.append(File.generated(config, _page_of(target), content=_content(target)))
            waiting += [target] * (target.suffix == ".md")
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    original = _original(here)

    def lead(match: re.Match[str]) -> str:
        target = _resolve(original, match[1])
        return match[1] if target is None else os.path.relpath(_page_of(target), os.path.dirname(here))

    return LINK.sub(lead, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    for page in DOCS.rglob("*.md"):
        shutil.copy(page, Path(config.site_dir) / page.relative_to(DOCS))


def _linked_files(page: Path) -> set[Path]:
    targets = {_resolve(page, link) for link in LINK.findall(page.read_text(encoding="utf-8"))}
    return {t for t in targets if t is not None and DOCS not in t.parents and t != ROOT / "README.md"}


def _resolve(page: Path, link: str) -> Path | None:
    """The file of the repository that a link of a page leads to."""
    if "://" in link:
        return None
    target = Path(os.path.normpath(page.parent / link))
    return target if ROOT in target.parents and target.is_file() else None


def _page_of(file: Path) -> str:
    """Where the site has a file of the repository, below `docs/`."""
    if file == ROOT / "README.md":
        return "index.md"
    if DOCS in file.parents:
        return file.relative_to(DOCS).as_posix()
    return f"source/{file.relative_to(ROOT).as_posix()}{'' if file.suffix == '.md' else '.md'}"


def _original(page: str) -> Path:
    if not page.startswith("source/"):
        return DOCS / page
    path = ROOT / page.removeprefix("source/")
    return path if path.exists() else path.with_suffix("")


def _content(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".md":
        name, language = file.relative_to(ROOT).as_posix(), _LANGUAGES.get(file.suffix, "")
        text = f"# {name}\n\n````{language}\n{text}````\n"
    return f"---\nsearch: {{exclude: true}}\n---\n{text}"
