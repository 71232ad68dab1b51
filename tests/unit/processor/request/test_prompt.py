from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.request.prompt import Template, as_text

COLUMNS = ["Company", "First Name", "budget"]


def test_fields_are_replaced_and_other_braces_stay() -> None:
    template = Template('Is {Company} of {First Name} like {"a": {1,2}} or {}?', COLUMNS)
    assert template.render({"Company": "A {First Name} B", "First Name": "Bo"}) == (
        'Is A {First Name} B of Bo like {"a": {1,2}} or {}?'
    )
    assert template.columns == ["Company", "First Name"]


def test_unknown_column_in_braces_is_an_error_that_lists_the_columns() -> None:
    with pytest.raises(SliceError, match=r"'company'.*'Company', 'First Name'"):
        Template("Is {company} big?", COLUMNS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), ("x", "x"), (3, "3"), (True, "True"), (dt.date(2026, 1, 31), "2026-01-31"),
        ({"a": [1]}, '{"a": [1]}'),
        ([dt.date(2026, 1, 31), None], '["2026-01-31", null]'), (b"bytes", "bytes"),
    ],
)  # fmt: skip
def test_values_are_formatted_for_people(value: Any, text: str) -> None:
    assert as_text(value) == text
