"""Samples how many tokens the rows of a slice have, before an engine starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.feeding.tokenized_request import RequestTokenizer
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder, RequestReader
from airflow_provider_raydatallm.processor.sizing.facts import TokenLengthSample
from airflow_provider_raydatallm.processor.store.ledger import MissingRows
from airflow_provider_raydatallm.processor.store.spans import Spans, count_rows, merge_spans

#: Sampled rows, at most about so many; the units they come from, and the runs of rows in a unit.
_ROWS = 1000
_UNITS = 16
_RUNS = 8


class LengthTokenizer(RequestTokenizer, Protocol):
    @property
    def max_positions(self) -> int | None:
        """Tokens that the model has positions for; None where that is unknown."""


def sample_token_lengths(
    open_tokenizer: Callable[[], LengthTokenizer],
    plan: Plan,
    rows: Sequence[tuple[int, Spans]],
    builder: RequestBuilder,
) -> TokenLengthSample:
    """Tokenizes the rows that `sample_rows` chose. Those whose request fails are left out.

    :param open_tokenizer: the engine's (`Engine.open_tokenizer`).
    :raises SliceError: of kind `model`, when the tokenizer cannot be loaded.
    """
    try:
        tokenizer = open_tokenizer()
    except SliceError:
        raise
    except Exception as e:  # the hub and the files raise any type
        raise SliceError(
            f"the model's tokenizer, which measures the rows, cannot be loaded: {e}", kind="model"
        ) from e
    read_requests = RequestReader(plan, builder, carry_row=False, is_sample=True)
    tokens: list[int] = []
    for index, spans in rows:
        for requests, _ in read_requests(index, spans):
            tokenized = tokenizer(requests.column("__request").to_pylist())
            tokens += [row.total_tokens for row in tokenized if row.error is None]
    return TokenLengthSample(tokens, tokenizer.max_positions)


def sample_rows(missing: MissingRows) -> list[tuple[int, Spans]]:
    """Chooses about 1,000 rows, evenly spread over the missing ones."""
    if missing.rows <= _ROWS:
        return list(missing)
    units = min(_UNITS, len(missing))
    chosen = [missing[i * len(missing) // units] for i in range(units)]
    rows = sum(count_rows(spans) for _, spans in chosen)
    return [(index, _sample_spans(spans, -(-_ROWS * count_rows(spans) // rows))) for index, spans in chosen]


def _sample_spans(spans: Spans, rows: int) -> Spans:
    """So many of their rows, in a few runs at even distances."""
    starts, stops = spans.astype(np.int64).T
    ends = np.cumsum(stops - starts)
    total = int(ends[-1])
    if total <= rows:
        return spans
    # The n-th missing row is in the span before which fewer are.
    chosen = (np.arange(_RUNS)[:, None] * total // _RUNS + np.arange(-(-rows // _RUNS))).ravel()
    offsets = stops[span := np.searchsorted(ends, chosen, "right")] - (ends[span] - chosen)
    return merge_spans(np.column_stack([offsets, offsets + 1]))
