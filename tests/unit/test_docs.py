"""What the docs name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    for file, test in re.findall(r"`(tests/[\w/.]+\.py)::(\w+)`", page.read_text()):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"


def test_page_of_guarantees_names_a_test_for_each() -> None:
    tables = re.findall(r"\| guarantee \| checked by \|\n\|---\|---\|\n((?:\|.*\n)+)", _guarantees())
    rows = [line for table in tables for line in table.splitlines()]
    assert len(rows) > 10
    assert all("`tests/" in line for line in rows)


def _guarantees() -> str:
    return (ROOT / "docs" / "guarantees.md").read_text()


def test_page_of_events_names_the_tests_that_there_are() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "what-happens.md").read_text()))
    there = set(re.findall(r"^def (test_\w+)\(", (ROOT / "tests/durable/test_events.py").read_text(), re.M))
    assert named == there - {"test_deferred_task_keeps_its_slot_of_a_pool_that_includes_deferred"}
