"""Advice for the next run from a finished one. Pure: measured figures in, advice out.

Each piece has the numbers that support it and the setting to change. Neither unmeasured figures nor a healthy
run give advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from airflow_provider_raydatallm.contract.result.report import Advice, Balance, Counts, Seconds, Utilisation
from airflow_provider_raydatallm.processor.sizing.facts import Sizes
from airflow_provider_raydatallm.processor.sizing.sizes import batch_size_for, workers_needed

#: Shorter inference says little about the steady state.
_MIN_SECONDS = 30.0
_GPU_BUSY_PERCENT = 80.0
#: From here on, the GPU is the limit.
_GPU_FULL_PERCENT = 90.0
#: Share of the time in which workers had requests.
_WORKERS_BUSY = 0.95
#: Share of the answers' tokens.
_REPEATED = 0.5
#: Longest busy time of a worker over the mean.
_MAX_IMBALANCE = 1.2
#: Share of rows.
_TRUNCATED = 0.01
#: Start time over inference time.
_LONG_START = 3.0
#: Share of the answers that one label has, of so many at least: few tables have such a share.
_ONE_LABEL = 0.95
_MIN_LABELLED = 50


#: What to change, by the task.
_FOR_CUT_ANSWERS = {
    "generate": "raise max_tokens in sampling_params (and max_model_len with it), or ask for less text",
    "transcribe": "listen to some of them: where nothing is said, or another language than audio.language, "
    "models repeat themselves",
}
_FOR_LONG_PROMPTS = {
    "generate": "raise max_model_len in engine.kwargs, or set quality.on_too_long='raise_limit'",
    "embed": "set quality.on_too_long='chunk', or raise max_model_len in engine.kwargs",
    "transcribe": "shorten prompt, which shares the model's positions with the transcript",
}


@dataclass(frozen=True)
class RunFacts:
    """Parts of the report, and:

    worker_busy: mean share of the time in which a worker had requests. too_long_rows: rows whose prompt the
    engine refused for its length. late_s: seconds after finish_by. could_use_fp8: whether the model is not
    quantized, and the GPUs have fp8. repeated_share: of the answers' tokens, those that stand in their
    prompts, where the engine does not speculate on that. labels: how many answers have each.
    """

    counts: Counts
    task: str = "generate"
    seconds: Seconds = field(default_factory=Seconds)
    utilisation: Utilisation = field(default_factory=Utilisation)
    balance: Balance = field(default_factory=Balance)
    worker_busy: float | None = None
    too_long_rows: int = 0
    late_s: float = 0.0
    could_use_fp8: bool = False
    repeated_share: float | None = None
    sizes: Sizes | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def advise(run: RunFacts) -> tuple[Advice, ...]:
    checks = (
        _check_gpu, _check_fp8, _check_repetition, _check_balance, _check_lengths, _check_start,
        _check_lateness, _check_labels,
    )  # fmt: skip
    return tuple(advice for check in checks for advice in check(run))


def _check_gpu(run: RunFacts) -> Iterator[Advice]:
    gpu, busy, seconds = run.utilisation.gpu_mean, run.worker_busy, run.seconds.inference
    if gpu is None or gpu >= _GPU_BUSY_PERCENT or busy is None or seconds is None or seconds < _MIN_SECONDS:
        return
    evidence = f"the GPUs were busy {gpu:.0f}% of {seconds:,.0f} s"
    if busy < _WORKERS_BUSY:
        evidence += f", and the workers had rows for {busy:.0%} of it"
        change = _smaller_batches(run)
        if change is None:
            change = "give reading and preprocess more CPUs, or lower engine.workers: rows came too slowly"
        yield Advice(code="gpu_waits_for_rows", evidence=evidence, change=change)
    else:
        evidence += ", though the workers had rows all the time"
        change = (
            "raise max_num_seqs in engine.kwargs, then max_num_batched_tokens; where prompts begin alike "
        )
        change += "the engine's own scheduler is the limit, and more workers help"
        yield Advice(code="gpu_not_filled", evidence=evidence, change=change)


def _check_fp8(run: RunFacts) -> Iterator[Advice]:
    gpu, seconds = run.utilisation.gpu_mean, run.seconds.inference
    if gpu is None or seconds is None or not run.could_use_fp8:
        return
    if gpu > _GPU_FULL_PERCENT and seconds >= _MIN_SECONDS:
        share = run.utilisation.flops_share
        at = f" at {share:.0f}% of their peak" if share is not None else ""
        bandwidth = run.utilisation.bandwidth_share
        at += f" and {bandwidth:.0f}% of their memory's bandwidth" if at and bandwidth is not None else ""
        evidence = (
            f"the GPUs were busy {gpu:.0f}% of {seconds:,.0f} s{at}, with weights that are not quantized"
        )
        change = "set quantization to 'fp8' in engine.kwargs, after a trial (source.max_rows) whose answers "
        change += "you compare"
        yield Advice(code="fp8_would_help", evidence=evidence, change=change)


def _check_repetition(run: RunFacts) -> Iterator[Advice]:
    share, seconds = run.repeated_share, run.seconds.inference
    if share is not None and share > _REPEATED and seconds is not None and seconds >= _MIN_SECONDS:
        evidence = f"{share:.0%} of the answers' tokens follow their prompts word for word"
        change = "set speculative_config to 'ngram' in engine.kwargs, and compare the rows/s: drafts pay "
        change += "where few rows run at once"
        yield Advice(code="answers_repeat_prompts", evidence=evidence, change=change)


def _check_balance(run: RunFacts) -> Iterator[Advice]:
    workers, imbalance, seconds = run.balance.workers, run.balance.max_over_mean, run.seconds.inference
    if workers is None or workers < 2 or imbalance is None or seconds is None:
        return
    if imbalance > _MAX_IMBALANCE and seconds >= _MIN_SECONDS:
        evidence = f"the longest of {workers} workers was busy {imbalance:.2f} times the mean"
        change = _smaller_batches(run)
        if change is None:
            change = "set max_tokens from a column where rows differ, so that the longest go first, or lower "
            change += "concurrency"
        yield Advice(code="workers_unbalanced", evidence=evidence, change=change)


def _smaller_batches(run: RunFacts) -> str | None:
    """None where rows are admitted one by one."""
    if run.sizes is None:
        return "lower engine.batch_size"
    size = run.sizes.batch_size
    return (
        None if size is None else f"lower engine.batch_size (it was {size}) to {batch_size_for(2, 1, size)}"
    )


def _check_lengths(run: RunFacts) -> Iterator[Advice]:
    rows, truncated, too_long = run.counts.planned, run.counts.truncated, run.too_long_rows
    if truncated is not None and rows and truncated / rows > _TRUNCATED:
        evidence = f"{truncated:,} of {rows:,} answers ({truncated / rows:.1%}) ended at max_tokens"
        change = _FOR_CUT_ANSWERS.get(run.task, _FOR_CUT_ANSWERS["generate"])
        yield Advice(code="answers_cut", evidence=evidence, change=change)
    if too_long and rows and too_long / rows > _TRUNCATED:
        evidence = f"{too_long:,} of {rows:,} prompts ({too_long / rows:.1%}) were longer than max_model_len"
        change = _FOR_LONG_PROMPTS.get(run.task, _FOR_LONG_PROMPTS["generate"])
        yield Advice(code="prompts_too_long", evidence=evidence, change=change)


def _check_start(run: RunFacts) -> Iterator[Advice]:
    seconds, start, workers = run.seconds.inference, run.seconds.engine_start, run.balance.workers
    if seconds is None or start is None or workers is None or workers < 2:
        return
    if start > _LONG_START * seconds:
        evidence = f"{workers} engines took {start:,.0f} s to start for {seconds:,.0f} s of work"
        change = "lower engine.workers: fewer workers start as fast, and cost less"
        yield Advice(code="start_longer_than_work", evidence=evidence, change=change)


def _check_lateness(run: RunFacts) -> Iterator[Advice]:
    if run.late_s <= 0:
        return
    inference, workers = run.seconds.inference or 0.0, run.balance.workers
    change = "start the run earlier"
    if workers is not None and inference > run.late_s:
        needed = workers_needed(1, inference * workers, inference - run.late_s)
        change = f"set engine.workers to {needed}"
        if run.sizes is not None and run.sizes.batch_size is not None:
            size = batch_size_for(needed, workers, run.sizes.batch_size)
            change += f", with engine.batch_size {size}, so that each keeps as many batches"
    evidence = f"the slice was finished {run.late_s:,.0f} s after finish_by"
    yield Advice(code="finished_late", evidence=evidence, change=change)


def _check_labels(run: RunFacts) -> Iterator[Advice]:
    answers = sum(run.labels.values())
    if answers < _MIN_LABELLED:
        return
    label, rows = max(run.labels.items(), key=itemgetter(1))
    if rows / answers >= _ONE_LABEL:
        yield Advice(
            code="one_label",
            evidence=f"{rows:,} of {answers:,} answers ({rows / answers:.0%}) are {label!r}",
            change="look at some of them (airflow-ray-llm sample), and say in the prompt when another label "
            "is right, if that is not what the table holds",
        )
