"""The life of one slice, step by step: look at what is published, plan, check, run, publish.

A run that fails publishes nothing and leaves what was published before as it was.
"""

from __future__ import annotations

import importlib
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from airflow_provider_raydatallm.processor import publish
from airflow_provider_raydatallm.processor.answers import AnswerShape
from airflow_provider_raydatallm.processor.engines.base import load_engine
from airflow_provider_raydatallm.processor.errors import SliceError
from airflow_provider_raydatallm.processor.fragments import Fragments
from airflow_provider_raydatallm.processor.measure import Meter
from airflow_provider_raydatallm.processor.pipeline import answered
from airflow_provider_raydatallm.processor.plan import Plan, make_plan
from airflow_provider_raydatallm.processor.preflight import check_model, check_resources
from airflow_provider_raydatallm.processor.prompt import RequestBuilder, structured_outputs
from airflow_provider_raydatallm.processor.store import Store
from airflow_provider_raydatallm.spec import Counts, Report, SliceJob

#: Seconds between two words of progress.
PROGRESS_SECONDS = 5.0

Progress = Callable[[dict[str, Any]], None]


def run_slice(job: SliceJob, progress: Progress) -> Report:
    """Answer and publish a slice.

    :param progress: called every few seconds with a step and, while rows are answered, the figures of
        `Meter.progress`.
    :raises SliceError: when the slice cannot be answered; nothing was published then.
    """
    _refuse_output_inside_input(job)
    store = Store(job.slice_path)
    progress({"step": "plan"})
    plan = make_plan(job)
    if (report := _already_published(job, plan, store)) is not None:
        return report
    if not plan.rows:
        return _empty(job, plan, store)
    return _answer(job, plan, store, progress)


def slice_status(job: SliceJob) -> Report | None:
    """The report of the slice that is published for this very job and the input as it is now; None when there
    is none."""
    store = Store(job.slice_path)
    manifest = publish.published(store)
    if manifest is None or not _same(manifest, job, make_plan(job)):
        return None
    return Report.model_validate(store.read_json(publish.REPORT))


def _same(manifest: dict[str, Any], job: SliceJob, plan: Plan) -> bool:
    return bool(manifest["fingerprint"] == job.fingerprint() and manifest["input"]["hash"] == plan.input_hash)


def _already_published(job: SliceJob, plan: Plan, store: Store) -> Report | None:
    """The no-op's report, when what is published is what this job would publish; None when it is to be
    computed.

    :raises SliceError: when something else is published and the policy is to fail.
    """
    manifest = publish.published(store)
    if manifest is None:
        return None
    then, now = manifest.get("slice_instant"), job.slice_instant
    if then and now and then != now:
        raise SliceError(
            f"slice {job.slice_key!r} was published for {then} and this run is for {now}: two runs share "
            "one key. "
            f"slice_format {job.slice_format!r} is too coarse for this schedule; an hourly DAG needs "
            "'%Y-%m-%dT%H', say"
        )
    if _same(manifest, job, plan):
        report = Report.model_validate(store.read_json(publish.REPORT))
        return report.model_copy(update={"outcome": "unchanged"})
    same_question = manifest["fingerprint"] == job.fingerprint()
    if not same_question and job.on_config_change == "fail":
        raise SliceError(
            f"slice {job.slice_key!r} is published with another configuration (fingerprint "
            f"{manifest['fingerprint']}, "
            f"now {job.fingerprint()}): model, prompt, sampling, schema or code changed. Set "
            "on_config_change='recompute' to replace it"
        )
    if manifest["input"]["hash"] != plan.input_hash and job.on_input_change == "fail":
        raise SliceError(
            f"slice {job.slice_key!r} is published from other input than {job.resolved_input_path} now holds "
            f"(then {manifest['input']['files']} file(s), {manifest['input']['rows']:,} rows; now "
            f"{plan.files} and {plan.rows:,}). Set on_input_change='recompute' to replace it"
        )
    return None


def _empty(job: SliceJob, plan: Plan, store: Store) -> Report:
    found = f"{plan.files} file(s) without a row of it" if plan.files else "no file"
    if job.on_empty == "fail":
        raise SliceError(
            f"slice {job.slice_key!r} is empty: {job.resolved_input_path} matches {found}. "
            "Check the path, or set on_empty='skip' or 'publish'"
        )
    report = _report(job, "empty", counts=Counts(planned=0, succeeded=0))
    if job.on_empty == "publish":
        files = []
        if plan.columns:
            shape = AnswerShape(job, _function(job.postprocess), plan.locate)
            files = [publish.write_part(store, job, plan, Fragments(store, publish.CHECKPOINT, shape.fields))]
        else:
            publish.begin(store)
            store.remove(publish.PART)
        publish.write_manifest(store, job, plan, files, report)
    return report


def _answer(job: SliceJob, plan: Plan, store: Store, progress: Progress) -> Report:
    preprocess, postprocess = _function(job.preprocess), _function(job.postprocess)
    shape = AnswerShape(job, postprocess, plan.locate)
    publish.check_columns(job, plan, shape.fields or [])
    builder = RequestBuilder(
        plan.columns,
        prompt=job.prompt,
        system_prompt=job.system_prompt,
        sampling_params=job.sampling_params,
        structured_outputs=structured_outputs(
            choices=job.choices, output_schema=job.output_schema, regex=job.regex, grammar=job.grammar
        ),
        preprocess=preprocess,
    )
    engine = load_engine(job.engine)(job, plan.rows)
    progress({"step": "check", "rows": 0, "planned": plan.rows})
    _connect()
    check_resources(engine.resources, job.accelerator_type)
    check_model(job.model_source)

    meter = Meter(plan.rows)
    attempt = f"{publish.CHECKPOINT}/{uuid.uuid4().hex}"
    fragments = Fragments(store, attempt)
    progress({"step": "start", **meter.progress()})
    said = time.monotonic()
    try:
        for answers in answered(plan, builder, engine, shape, carry_row=postprocess is not None):
            if not meter.rows:
                publish.check_columns(job, plan, [f for f in answers.schema if not f.name.startswith("__")])
            meter.add(answers)
            fragments.add(answers)
            if time.monotonic() - said >= PROGRESS_SECONDS:
                progress({"step": "answer", **meter.progress()})
                said = time.monotonic()
        fragments.flush()
        progress({"step": "publish", **meter.progress()})
        began = time.monotonic()
        files = [publish.write_part(store, job, plan, fragments)]
        meter.published(time.monotonic() - began)
        report = _report(job, "published", **meter.figures())
        publish.write_manifest(store, job, plan, files, report)
    finally:
        _clean_up(store, attempt)
    return report


def _clean_up(store: Store, attempt: str) -> None:
    """Remove an attempt's fragments; what goes wrong with that must not hide what the attempt failed of."""
    try:
        store.remove(attempt)
        if not Store(f"{store.url}/{publish.CHECKPOINT}").names():
            store.remove(publish.CHECKPOINT)
    except OSError as e:
        print(f"warning: {store.path(attempt)} could not be removed: {e}", file=sys.stderr)


def _report(job: SliceJob, outcome: str, **figures: Any) -> Report:
    return Report.model_validate(
        {
            "outcome": outcome,
            "slice_key": job.slice_key,
            "output_path": job.slice_path,
            "fingerprint": job.fingerprint(),
            **figures,
        }
    )


def _connect() -> None:
    import ray

    ray.init(ignore_reinit_error=True, logging_level="warning")


def _function(reference: str | None) -> Callable[[dict[str, Any]], Any] | None:
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as e:  # importing runs the user's module, which may raise anything
        what = f"{type(e).__name__}: {e}"
        raise SliceError(
            f"{reference!r} cannot be loaded on the cluster ({what}). Ship its code with code_paths"
        ) from e
    if not callable(found):
        raise SliceError(f"{reference!r} is no function")
    return found


def _refuse_output_inside_input(job: SliceJob) -> None:
    given, made = job.resolved_input_path.rstrip("/") + "/", job.slice_path.rstrip("/") + "/"
    if made.startswith(given):
        raise SliceError(
            f"the slice folder {job.slice_path} lies inside the input {job.resolved_input_path}: choose "
            "another output_path"
        )
