from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict

from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.task.slice_key import SliceKey, chosen_slice, resolve_slice_key

MIDNIGHT_IN_TAIPEI = dt.datetime(2026, 1, 30, 16, tzinfo=dt.UTC)


def resolve(**given: Any) -> SliceKey:
    nothing: dict[str, Any] = {
        "slice_key": None, "partition_key": None, "partition_date": None, "param": None,
        "data_interval_start": None, "logical_date": None, "partitioned": False, "timezone": ZoneInfo("UTC"),
    }  # fmt: skip
    lazy = {name: partial(lambda value: value, {**nothing, **given}[name]) for name in ("param", "timezone")}
    return resolve_slice_key(**{**nothing, **given, **lazy})


def test_order_is_argument_partition_param_interval_logical_date() -> None:
    dates = {
        "data_interval_start": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "logical_date": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    }
    assert resolve(slice_key="a", partition_key="b", param="c", **dates).key == "a"
    assert resolve(partition_key="b", param="c", **dates).key == "b"
    assert resolve(param="c", **dates).key == "c"
    assert resolve(**dates) == SliceKey("2026-01-01", dates["data_interval_start"])
    assert resolve(logical_date=dates["logical_date"]).key == "2026-01-02"


def test_dates_are_formatted_in_the_dags_timezone() -> None:
    taipei = ZoneInfo("Asia/Taipei")
    run = {"data_interval_start": MIDNIGHT_IN_TAIPEI, "timezone": taipei}
    assert resolve(**run).key == "2026-01-31"
    assert resolve(**run, slice_format="%Y%m%dT%H").key == "20260131T00"


def test_partition_key_is_used_verbatim() -> None:
    assert resolve(partition_key="EMEA/2026-01", slice_format="%Y").key == "EMEA/2026-01"


def test_what_a_given_key_does_not_need_is_not_asked() -> None:
    """The timezone of some schedules cannot be known, and a run's conf may set a slice for other tasks."""

    def fail() -> Any:
        raise RayLLMInputError("asked")

    lazy: dict[str, Any] = {"param": fail, "timezone": fail}
    dates = {"data_interval_start": MIDNIGHT_IN_TAIPEI, "logical_date": None, "partitioned": False}
    for given in ({"slice_key": "a", "partition_key": None}, {"slice_key": None, "partition_key": "a"}):
        assert resolve_slice_key(**given, partition_date=None, **lazy, **dates).key == "a"


def test_partition_has_the_instant_that_airflow_wrote_as_its_key() -> None:
    partition = {"partition_key": "2026-01-31", "partition_date": MIDNIGHT_IN_TAIPEI}
    assert resolve(**partition) == SliceKey("2026-01-31", MIDNIGHT_IN_TAIPEI)
    assert resolve(**partition, slice_key="own").instant is None


def test_partitioned_run_without_a_key_is_never_now() -> None:
    with pytest.raises(RayLLMInputError, match="partition"):
        resolve(partitioned=True, logical_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    "rendered",
    [
        "None",
        "",
        "  ",
        "null",
        "a\nb",
        7,
        "a\x7fb",
        "a\u202eb",
        "_SUCCESS",
        ".hidden",
        "x" * 201,
        "é" * 41,
        "a\ud800",
        "2026-01-01\u200b",
        "a\u2028b",
    ],
)
def test_invalid_rendered_key_is_refused(rendered: object) -> None:
    with pytest.raises(RayLLMInputError, match="slice_key"):
        resolve(slice_key=rendered)


def test_empty_param_falls_through_and_nothing_at_all_is_an_error() -> None:
    assert resolve(param="", logical_date=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)).key == "2026-01-02"
    with pytest.raises(RayLLMInputError, match=r"no slice key: .*Materialize"):
        resolve()


@pytest.mark.parametrize(
    ("run_type", "conf", "slice_"),
    [
        ("manual", {"slice": "a"}, "a"), ("operator_triggered", {"slice": "a"}, "a"),
        ("asset_materialization", {"slice": "a"}, "a"), ("manual", {}, None), ("manual", None, None),
        ("backfill", {"slice": "a"}, None), ("scheduled", {"slice": "a"}, None),
        ("asset_triggered", {"slice": "a"}, None),
    ],
)  # fmt: skip
def test_param_counts_where_a_run_sets_it_that_somebody_asked_for(
    run_type: str, conf: dict[str, str] | None, slice_: str | None
) -> None:
    declared = ParamsDict({"slice": Param("the default", type="string")})
    assert chosen_slice(run_type, conf, declared) == slice_


def test_slice_of_a_run_whose_dag_has_no_such_param_is_refused() -> None:
    with pytest.raises(RayLLMInputError, match="slice='a', but the DAG has no Param 'slice'"):
        chosen_slice("manual", {"slice": "a"}, ParamsDict())
    assert chosen_slice("backfill", {"slice": "a"}, ParamsDict()) is None


def test_slice_that_its_param_does_not_allow_is_refused() -> None:
    declared = ParamsDict({"slice": Param("2026-01-01", type="string", format="date")})
    with pytest.raises(RayLLMInputError, match="is not a 'date'"):
        chosen_slice("manual", {"slice": "yesterday"}, declared)
