"""The documentation site builds strictly, asks nobody for anything, and leads wherever its pages do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from docs_build import reference, signatures
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
#: What a browser loads by itself, unlike a link that somebody follows.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc="([^"]+)"|<link\b[^>]*?\shref="([^"]+)"|@import[^;]+"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def _html(site: Path) -> Iterator[tuple[str, str]]:
    for page in sorted(site.rglob("*.html")):
        yield page.relative_to(site).as_posix(), page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_site_has_a_page_for_each_page_of_docs(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").exists(), page
        assert (site / page.relative_to(DOCS)).read_text() == page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("link", ["gone.md", "index.md#gone", "../gone.py", "/index.md"])
def test_link_to_nothing_fails_the_build(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n[there]({link})\n")
    small = {
        "docs_dir": str(tmp_path / "docs"),
        "site_dir": str(tmp_path / "site"),
        "nav": ["index.md"],
        "extra_css": [],
        "plugins": [],
    }
    with pytest.raises(Abort):
        build(load_config(str(ROOT / "mkdocs.yml"), hooks=[], **small))


def test_link_to_a_file_outside_docs_leads_to_its_text(site: Path) -> None:
    operator = (site / "operator.html").read_text()
    assert 'href="source/dags/customers_daily.py.html"' in operator
    assert "CronDataIntervalTimetable" in (site / "source" / "dags" / "customers_daily.py.html").read_text()
    assert '<a href="index.html">README</a>' in (site / "architecture.html").read_text()
    assert '<a href="../architecture.html">' in (site / "source" / "CONTRIBUTING.html").read_text()


def test_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    for name, html in _html(site):
        loaded = [one or other for one, other in _LOADED.findall(html)]
        assert loaded, name
        assert not [address for address in loaded if "//" in address], name
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet


def test_lists_and_tables_are_rendered_as_such(site: Path) -> None:
    """A code host is more lenient than the site: it takes a list right after a paragraph for one."""
    for name, html in _html(site):
        article = re.sub(
            r"<(pre|code)\b.*?</\1>", "", html[html.find("<article") : html.find("</article>")], flags=re.S
        )
        assert not re.search(r"^\s*(?:- |\d+\. |\| )", article, re.M), name
        assert "```" not in article, name


def test_llms_txt_names_each_page_of_the_site_once(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    lines = re.findall(r"^- \[.+?\]\((.+?)\): \S.+$", text, re.M)
    assert sorted(lines) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert len(lines) == text.count("](")


def test_pages_of_the_reference_are_those_of_the_code() -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in reference.FOLDER.glob("*.md")}
    assert written == reference.pages(), "`make docs` writes them again"


def test_texts_in_the_code_are_those_of_the_declarations() -> None:
    for path, text in signatures.texts().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: `make docs` writes it again"


def test_reference_explains_each_argument_and_setting() -> None:
    pages = reference.pages()
    for name in ("arguments.md", "settings.md"):
        rows = [
            re.split(r"(?<!\\) \| ", line.strip("| "))
            for line in pages[name].splitlines()
            if line.startswith("| `")
        ]
        assert len(rows) > 10
        assert not [row for row in rows if not row[-1].strip()], name
