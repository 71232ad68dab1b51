"""The engine that the folder's tests share ends after the last of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine_processes import end_engines


@pytest.fixture(scope="package", autouse=True)
def engine_ends_with_the_folder() -> Iterator[None]:
    yield
    end_engines()
