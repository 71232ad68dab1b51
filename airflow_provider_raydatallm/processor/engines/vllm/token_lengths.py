"""How long the rows of a slice are, in tokens: asked of a sample before an engine starts."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.facts import TokenLengthSample
from airflow_provider_raydatallm.processor.store.ledger import MissingRows, Span, count_rows

#: Rows that are looked at, and the units and places in them that they are taken from.
_ROWS = 1000
_UNITS = 16
_PLACES = 8


def sample_token_lengths(
    job: SliceJob, plan: Plan, work: MissingRows, builder: RequestBuilder
) -> TokenLengthSample:
    """Of up to about 1,000 rows that are spread evenly over the work: all of its rows when it has no more.
    Rows that cannot be asked are left out.

    :raises SliceError: of kind `model`, when there is no tokenizer.
    """
    from airflow_provider_raydatallm.processor.engines.vllm.tokenizer import PromptTokenizer

    try:
        encoder = PromptTokenizer(job)
    except Exception as e:  # of whatever kind the hub or the files give
        raise SliceError(
            f"how long rows are is asked of the model's tokenizer, and it cannot be loaded: {e}", kind="model"
        ) from e
    make_requests = RequestReader(plan, builder, carry_row=False)
    tokens: list[int] = []
    for index, spans in _spread(work):
        for requests, _ in make_requests(index, spans):
            rows = encoder(requests.column("__request").to_pylist())
            tokens += [row.total_tokens for row in rows if row.error is None]
    return TokenLengthSample(tokens, encoder.positions)


def _spread(work: MissingRows) -> list[tuple[int, list[Span]]]:
    """Some of the work, about `_ROWS` rows of it at most."""
    if sum(count_rows(spans) for _, spans in work) <= _ROWS:
        return [(index, list(spans)) for index, spans in work]
    units = min(_UNITS, len(work))
    chosen = [work[i * len(work) // units] for i in range(units)]
    rows = sum(count_rows(spans) for _, spans in chosen)
    return [(index, _thinned(spans, -(-_ROWS * count_rows(spans) // rows))) for index, spans in chosen]


def _thinned(spans: Sequence[Span], rows: int) -> list[Span]:
    """So many of their rows, in a few runs at even distances."""
    there = count_rows(spans)
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
