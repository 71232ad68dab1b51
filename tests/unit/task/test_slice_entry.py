from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from pydantic import BaseModel

from airflow_provider_raydatallm.contract.result.report import Cost, Counts, Report, Seconds, Throughput
from airflow_provider_raydatallm.contract.result.verdict import GateVerdict
from airflow_provider_raydatallm.operators.ray_llm_batch import RayLLMBatchOperator
from airflow_provider_raydatallm.task import own_xcom
from airflow_provider_raydatallm.task.slice_entry import INDEX_KEY, SliceEntry, index_key, write_entry
from tests.support.context import StateStore, context_of
from tests.support.slice_jobs import slice_job

REPORT = Report(
    outcome="published", slice_key="2026-01-31", output_path="/out/ds=2026-01-31", published_version=3,
    fingerprint="f", counts=Counts(planned=100, succeeded=98, quarantined=2, truncated=None),
    seconds=Seconds(engine_start=6.0, inference=4.0),
    throughput=Throughput(rows_per_s=25.0, input_tokens_per_s=300.0, output_tokens_per_s=100.0,
                          tokens_per_s_per_gpu=200.0),
    gpu_seconds=20.0, cost=Cost.of(20.0, 3.6, rows=100, tokens=4000), labels={"a": 98},
)  # fmt: skip
RESULT = REPORT.to_xcom(report_path="/r", ray_job_id="j", dashboard_url=None, queued=1.0, total=12.0)


class Written:
    """What a task wrote: XComs, and the state stores of its assets."""

    def __init__(self, *outlets: Any) -> None:
        with DAG("d", schedule=None):
            self.operator = RayLLMBatchOperator(
                task_id="t", input_path="/in", output_path="/out", model_source="m", prompt="{a}",
                outlets=list(outlets),
            )  # fmt: skip
        self.stores = {Asset("one").name: StateStore(), Asset("two").name: StateStore()}
        self.context = context_of(self.operator)
        self.context["asset_state_store"] = self
        self.xcoms: dict[str, Any] = self.context["ti"].xcoms

    def __getitem__(self, asset: Any) -> StateStore:
        return self.stores[asset.name]

    def write(self, result: Any = None, **given: Any) -> None:
        write_entry(self.context, self.operator.outlets, slice_job(**given), result)


def test_entry_has_the_slice_first_and_its_figures_at_the_end() -> None:
    written = Written()
    written.write()
    running = SliceEntry.parse(written.xcoms[INDEX_KEY])
    assert running is not None
    assert (running.slice_key, running.outcome, running.counts) == (slice_job().slice_key, None, {})
    assert running.paths["table"] == slice_job().slice_path

    written.write(RESULT)
    entry = SliceEntry.parse(written.xcoms[INDEX_KEY])
    assert entry is not None
    assert entry.counts == {"planned": 100, "succeeded": 98, "quarantined": 2}
    assert entry.seconds == {"queued": 1.0, "engine_start": 6.0, "inference": 4.0, "total": 12.0}
    assert (entry.tokens_per_s, entry.gpu_seconds, entry.labels) == (400.0, 20.0, {"a": 98})
    assert entry.cost == 0.02
    assert len(json.dumps(written.xcoms[INDEX_KEY])) < 1500


def test_entry_of_a_gate_whose_figure_is_not_known_can_be_read() -> None:
    unknown = GateVerdict(of="labels", value=None, max=0.2, against=7, slices=0, verdict="held")
    result = REPORT.model_copy(update={"gates": (unknown,)})
    written = Written()
    written.write(
        result.to_xcom(report_path="/r", ray_job_id="j", dashboard_url=None, queued=1.0, total=12.0)
    )
    entry = SliceEntry.parse(written.xcoms[INDEX_KEY])
    assert entry is not None
    assert entry.gates == [unknown]


def test_what_an_entry_leaves_out_as_null_need_not_be_there() -> None:
    def check(model: type[BaseModel]) -> None:
        for name, field in model.model_fields.items():
            kinds = list(flat(field.annotation))
            assert not (type(None) in kinds and field.is_required()), f"{model.__name__}.{name}"
            for kind in kinds:
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    seen.add(kind)
                    check(kind)

    def flat(annotation: Any) -> Iterator[Any]:
        yield annotation
        for part in get_args(annotation):
            yield from flat(part)

    seen: set[type[BaseModel]] = set()
    check(SliceEntry)
    assert {kind.__name__ for kind in seen} >= {"GateVerdict", "GoldenFigures", "Confusion"}


def test_entry_that_would_be_long_lacks_what_makes_it_so() -> None:
    written = Written()
    written.write({**RESULT, "labels": {"x" * 1000 + str(i): i for i in range(50)}})
    entry = SliceEntry.parse(written.xcoms[INDEX_KEY])
    assert entry is not None
    assert (entry.labels, entry.counts["planned"]) == (None, 100)


def test_finished_entry_is_kept_with_the_first_asset() -> None:
    written = Written(AssetAlias("alias"), Asset("two"), Asset("one"))
    key = index_key("d", "t", slice_job().slice_key)
    written.write()
    assert written.stores == {"one": {}, "two": {}}
    written.write(RESULT)
    assert written.stores == {"one": {}, "two": {key: written.xcoms[INDEX_KEY]}}


def test_trial_is_not_kept_as_the_slice() -> None:
    written = Written(Asset("one"))
    written.write(RESULT, source__max_rows=10)
    assert written.stores["one"] == {}
    entry = SliceEntry.parse(written.xcoms[INDEX_KEY])
    assert entry is not None
    assert entry.trial == "first-10"


def test_no_failure_of_the_index_fails_the_task(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ConnectionError("the API server is away")

    monkeypatch.setattr(own_xcom, "push", fail)
    Written(Asset("one")).write(RESULT)
    assert "does not show this run of the slice: the API server is away" in caplog.text


def test_keys_of_any_slice_fit_and_differ() -> None:
    keys = [index_key(d, t, s) for d, t, s in (
        ("d", "t", "k"), ("d", "u", "k"), ("d", "t", "x" * 600), ("d", "t", "x" * 601),
    )]  # fmt: skip
    assert len(set(keys)) == 4
    assert max(map(len, keys)) <= 512


@pytest.mark.parametrize("value", [
    None, "text", [], {"format": 2, "slice_key": "k", "paths": {}}, {"slice_key": "k"},
    {"slice_key": 5, "paths": {}}, {"slice_key": "k", "paths": {}, "counts": {"planned": "many"}},
])  # fmt: skip
def test_what_cannot_be_read_is_no_entry(value: Any) -> None:
    assert SliceEntry.parse(value) is None


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    assert SliceEntry.parse({"slice_key": "k", "paths": {}, "new": 1}) is not None
