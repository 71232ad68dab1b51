"""How long the rows of a slice are, in tokens: asked of a sample before an engine starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_raydatallm.processor.ledger import Span, Work, count
from airflow_provider_raydatallm.processor.pipeline import MakeRequests
from airflow_provider_raydatallm.processor.plan import Plan
from airflow_provider_raydatallm.processor.prompt import RequestBuilder
from airflow_provider_raydatallm.spec import SliceJob

if TYPE_CHECKING:
    from airflow_provider_raydatallm.processor.engines.encoder import Encoder

#: Rows that are looked at, and the units and places in them that they are taken from.
_ROWS = 1000
_UNITS = 16
_PLACES = 8


def sample_lengths(job: SliceJob, plan: Plan, work: Work, builder: RequestBuilder) -> list[int]:
    """Tokens of prompt and longest answer, of up to 1,000 rows that are spread evenly over the work. All of
    its rows when it has no more; rows that cannot be asked are left out."""
    from airflow_provider_raydatallm.processor.engines.encoder import Encoder

    encoder = Encoder(job)
    make_requests = MakeRequests(plan, builder, carry_row=False)
    lengths: list[int] = []
    for index, spans in _spread(work):
        for requests, _ in make_requests(index, spans):
            lengths += _lengths(encoder, requests.column("__request").to_pylist())
    return lengths


def _lengths(encoder: Encoder, requests: Sequence[str]) -> list[int]:
    return [row.most for row in encoder(requests) if row.error is None]


def _spread(work: Work) -> list[tuple[int, list[Span]]]:
    """Some of the work, at most `_ROWS` rows of it."""
    if sum(count(spans) for _, spans in work) <= _ROWS:
        return [(index, list(spans)) for index, spans in work]
    step = max(1, len(work) // _UNITS)
    chosen = work[::step][:_UNITS]
    each = _ROWS // len(chosen)
    return [(index, _thinned(spans, each)) for index, spans in chosen]


def _thinned(spans: Sequence[Span], rows: int) -> list[Span]:
    """So many of their rows, in a few runs at even distances."""
    there = count(spans)
    if there <= rows:
        return list(spans)
    run = -(-rows // _PLACES)
    kept: list[Span] = []
    passed = 0  # rows of the spans before
    for start, stop in spans:
        for place in range(_PLACES):
            first = place * there // _PLACES - passed + start
            low, high = max(first, start), min(first + run, stop)
            if low < high:
                kept.append((low, high))
        passed += stop - start
    return kept
