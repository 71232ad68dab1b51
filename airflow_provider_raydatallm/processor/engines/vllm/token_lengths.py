"""Samples how many tokens the rows of a slice have, before an engine starts."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.facts import TokenLengthSample
from airflow_provider_raydatallm.processor.store.ledger import MissingRows, Span, count_rows

#: Sampled rows, at most about so many; the units they come from, and the runs of rows in a unit.
_ROWS = 1000
_UNITS = 16
_RUNS = 8


def sample_token_lengths(
    job: SliceJob, plan: Plan, missing: MissingRows, builder: RequestBuilder
) -> TokenLengthSample:
    """Tokenizes up to about 1,000 rows, evenly spread over the missing ones. Rows whose request fails are
    left out.

    :raises SliceError: of kind `model`, when the tokenizer cannot be loaded.
    """
    from airflow_provider_raydatallm.processor.engines.vllm.tokenizer import PromptTokenizer

    try:
        tokenizer = PromptTokenizer(job)
    except Exception as e:  # the hub and the files raise any type
        raise SliceError(
            f"the model's tokenizer, which measures the rows, cannot be loaded: {e}", kind="model"
        ) from e
    read_requests = RequestReader(plan, builder, carry_row=False)
    tokens: list[int] = []
    for index, spans in _sample_rows(missing):
        for requests, _ in read_requests(index, spans):
            rows = tokenizer(requests.column("__request").to_pylist())
            tokens += [row.total_tokens for row in rows if row.error is None]
    return TokenLengthSample(tokens, tokenizer.max_positions)


def _sample_rows(missing: MissingRows) -> list[tuple[int, list[Span]]]:
    if sum(count_rows(spans) for _, spans in missing) <= _ROWS:
        return [(index, list(spans)) for index, spans in missing]
    units = min(_UNITS, len(missing))
    chosen = [missing[i * len(missing) // units] for i in range(units)]
    rows = sum(count_rows(spans) for _, spans in chosen)
    return [(index, _sample_spans(spans, -(-_ROWS * count_rows(spans) // rows))) for index, spans in chosen]


def _sample_spans(spans: Sequence[Span], rows: int) -> list[Span]:
    """So many of their rows, in a few runs at even distances."""
    total = count_rows(spans)
    if total <= rows:
        return list(spans)
    run = -(-rows // _RUNS)
    sample: list[Span] = []
    passed = 0  # rows of earlier spans
    for start, stop in spans:
        for i in range(_RUNS):
            first = i * total // _RUNS - passed + start
            low, high = max(first, start), min(first + run, stop)
            if low < high:
                sample.append((low, high))
        passed += stop - start
    return sample
