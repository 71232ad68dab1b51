"""Every path, test and link that the docs name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
PATH = re.compile(
    r"`((?:airflow_provider_raydatallm|tests|benchmarks|dags|demo|docker|docs_build|constraints|grafana)/[\w/.-]*)`"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, test in re.findall(r"\b(tests/[\w/.]+\.py)::(\w+)", text):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    for path in PATH.findall(text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m ((?:benchmarks|demo|tests)[\w.]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not heading or heading in _headings(target), link


def _headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_page_of_guarantees_names_a_test_for_each() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| guarantee \| checked by \|\n\|---\|---\|\n((?:\|.*\n)+)", page)
    rows = [line for table in tables for line in table.splitlines()]
    assert len(rows) > 10
    assert all("`tests/" in line for line in rows)


@pytest.mark.parametrize("name", ["what-happens.md", "security.md"])
def test_every_promise_of_a_page_has_its_test_beside_it(name: str) -> None:
    """Promises stand in tables, whose last column names tests; lists are for what is not covered alone."""
    covered = (ROOT / "docs" / name).read_text(encoding="utf-8").split("## What is not covered")[0]
    promises = [
        line for line in covered.splitlines() if re.match(r"\| (?!(?:who|what|event|part|promise) \|)", line)
    ]
    assert len(promises) > 30
    assert [line for line in promises if not re.search(r"`tests?[/_][^|]*\|$", line)] == []
    assert re.findall(r"^(?:- |\* |\d+\. ).*", covered, re.M) == []


def test_page_of_events_names_every_test_of_events() -> None:
    page = (ROOT / "docs" / "what-happens.md").read_text(encoding="utf-8")
    files = ("test_events.py", "test_held_submissions.py")
    tests = "".join((ROOT / "tests" / "durable" / name).read_text(encoding="utf-8") for name in files)
    unnamed = {"test_deferred_task_keeps_its_slot_of_a_pool_that_includes_deferred"}
    assert (
        set(re.findall(r"`(test_\w+)`", page)) == set(re.findall(r"^def (test_\w+)\(", tests, re.M)) - unnamed
    )
