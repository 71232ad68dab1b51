"""The demo's slices as specs, for `airflow-ray-llm`: the same as in the example DAG `customers_daily`."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from demo.customers import LABELS


def spec_of(date: str, home: Path) -> SliceJob:
    """:param home: the folder that `make demo` works in."""
    written = {
        "slice_key": date,
        "input_path": f"{home}/customers/ds={{slice}}/",
        "output_path": f"{home}/customers_enriched",
        "model_source": f"{home}/model",
        "system_prompt": "You infer a company's industry.",
        "prompt": "What industry is this company in: {Company}",
        "choices": LABELS,
        "sampling_params": {"temperature": 0, "max_tokens": 16},
        "output_column": "industry",
        "engine": {"kwargs": {"max_model_len": 256}},
    }
    return SliceJob.model_validate(written)


def write_specs(dates: tuple[str, ...], home: Path) -> None:
    """Writes `spec-<date>.json` for each date."""
    for date in dates:
        (home / f"spec-{date}.json").write_text(spec_of(date, home).model_dump_json(indent=2))
