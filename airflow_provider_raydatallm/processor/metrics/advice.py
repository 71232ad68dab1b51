"""What a finished run tells about the next one. Pure: measured figures in, advice out.

Each piece has the numbers that it is drawn from and the setting to change. What was not measured gives none,
and neither does a healthy run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_raydatallm.contract.report import Advice, Balance, Counts, Seconds, Utilisation
from airflow_provider_raydatallm.processor.sizing.facts import Sizes
from airflow_provider_raydatallm.processor.sizing.sizes import batch_size_for, workers_needed

#: Runs that answered for less say little about steady work.
_SECONDS = 30.0
_GPU_BUSY = 80.0
#: Of the time, in which workers had something to do.
_WORKERS_BUSY = 0.95
#: The longest busy time of a worker over the mean.
_BALANCED = 1.2
#: Rows.
_CUT = 0.01
#: A start that takes so many times as long as the answers.
_START = 3.0


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run: its report's parts; `busy`, the mean share of the time in which a worker had
    rows to answer; `too_long`, rows whose prompt the engine refused for its length; and `late`, seconds by
    which it ended after its time."""

    counts: Counts
    seconds: Seconds = field(default_factory=Seconds)
    utilisation: Utilisation = field(default_factory=Utilisation)
    balance: Balance = field(default_factory=Balance)
    busy: float | None = None
    too_long: int = 0
    late: float = 0.0
    sizes: Sizes | None = None


def advise(run: RunFacts) -> tuple[Advice, ...]:
    return (*_gpu(run), *_balance(run), *_lengths(run), *_start(run), *_late(run))


def _gpu(run: RunFacts) -> Iterator[Advice]:
    gpu, seconds = run.utilisation.gpu_mean, run.seconds.inference
    if gpu is None or gpu >= _GPU_BUSY or seconds is None or seconds < _SECONDS:
        return
    seen = f"the GPUs were busy {gpu:.0f}% of {seconds:,.0f} s"
    if run.busy is not None and run.busy < _WORKERS_BUSY:
        size = run.sizes.batch_size if run.sizes is not None else None
        yield Advice(
            code="gpu_waits_for_rows",
            evidence=f"{seen}, and the workers had rows for {run.busy:.0%} of it",
            change=f"lower batch_size{f' (it was {size})' if size else ''}, so that there are more and "
            "smaller tasks, or lower concurrency",
        )
    elif run.busy is not None:
        yield Advice(
            code="gpu_not_filled",
            evidence=f"{seen}, though the workers had rows all the time",
            change="raise max_num_seqs in engine_kwargs, then max_num_batched_tokens; where prompts begin "
            "alike the engine's own scheduler is the limit, and more concurrency helps",
        )


def _balance(run: RunFacts) -> Iterator[Advice]:
    workers, uneven, seconds = run.balance.workers, run.balance.max_over_mean, run.seconds.inference
    if workers is None or workers < 2 or uneven is None or seconds is None:
        return
    if uneven > _BALANCED and seconds >= _SECONDS:
        smaller = batch_size_for(2, 1, run.sizes.batch_size) if run.sizes is not None else None
        yield Advice(
            code="workers_unbalanced",
            evidence=f"the longest of {workers} workers was busy {uneven:.2f} times the mean",
            change=f"lower batch_size{f' to {smaller}' if smaller else ''}",
        )


def _lengths(run: RunFacts) -> Iterator[Advice]:
    rows, cut = run.counts.planned, run.counts.truncated
    if cut is not None and rows and cut / rows > _CUT:
        yield Advice(
            code="answers_cut",
            evidence=f"{cut:,} of {rows:,} answers ({cut / rows:.1%}) ended at max_tokens",
            change="raise max_tokens in sampling_params (and max_model_len with it), or ask for less",
        )
    if run.too_long and rows and run.too_long / rows > _CUT:
        yield Advice(
            code="prompts_too_long",
            evidence=f"{run.too_long:,} of {rows:,} prompts ({run.too_long / rows:.1%}) were longer than "
            "max_model_len",
            change="raise max_model_len in engine_kwargs, or set on_too_long='raise_limit'",
        )


def _start(run: RunFacts) -> Iterator[Advice]:
    # A slice of seconds cannot be helped by another size.
    seconds, start, workers = run.seconds.inference, run.seconds.engine_start, run.balance.workers
    if seconds is None or start is None or workers is None or workers < 2:
        return
    if start > _START * seconds:
        yield Advice(
            code="start_longer_than_work",
            evidence=f"{workers} engines took {start:,.0f} s to start for {seconds:,.0f} s of work",
            change="lower concurrency: fewer workers start as fast, and cost less",
        )


def _late(run: RunFacts) -> Iterator[Advice]:
    if run.late <= 0:
        return
    inference, workers = run.seconds.inference or 0.0, run.balance.workers
    change = "start the run earlier"
    if workers is not None and inference > run.late:
        needed = workers_needed(1, inference * workers, inference - run.late)
        change = f"set concurrency to {needed}"
        if run.sizes is not None:
            size = batch_size_for(needed, workers, run.sizes.batch_size)
            change += f", with batch_size {size}, so that each keeps as many batches"
    yield Advice(
        code="finished_late",
        evidence=f"the slice was finished {run.late:,.0f} s after finish_by",
        change=change,
    )
