"""What a run measures: rows, tokens, seconds, and the rates drawn from them."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raydatallm.spec import Counts, Seconds, Throughput, Tokens


class Meter:
    """Adds up answered rows as they leave the engine.

    Answer tables carry `__input_tokens`, `__output_tokens`, `__engine_seconds` and `__finished_at` (epoch
    seconds). A row's request entered the engine at `finished_at - engine_seconds`, so that the first request
    is known without a word from the engine.
    """

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.rows = 0
        self.invalid = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.tokens_known = True
        self._began = time.time()
        self._first_request: float | None = None
        self._last_row: float | None = None
        self._publish: float | None = None

    def add(self, answers: pa.Table) -> None:
        self.rows += answers.num_rows
        self.invalid += pc.sum(answers.column("__invalid")).as_py() or 0
        for name in ("input_tokens", "output_tokens"):
            column = answers.column(f"__{name}")
            self.tokens_known &= column.null_count == 0
            setattr(self, name, getattr(self, name) + (pc.sum(column).as_py() or 0))
        entered = pc.min(
            pc.subtract(answers.column("__finished_at"), answers.column("__engine_seconds"))
        ).as_py()
        finished = pc.max(answers.column("__finished_at")).as_py()
        if entered is not None:
            self._first_request = min(entered, self._first_request or entered)
        if finished is not None:
            self._last_row = max(finished, self._last_row or finished)

    def published(self, seconds: float) -> None:
        self._publish = seconds

    def progress(self) -> dict[str, Any]:
        """Rows done, rates since the first request, and seconds left at that rate; None while nothing is
        known."""
        elapsed = time.time() - self._first_request if self._first_request else None
        rate = self.rows / elapsed if elapsed and elapsed > 0 else None
        return {
            "rows": self.rows,
            "planned": self.planned,
            "rows_per_s": _rounded(rate),
            "tokens_per_s": _rounded((self.input_tokens + self.output_tokens) / elapsed)
            if rate and elapsed
            else None,
            "eta_s": _rounded((self.planned - self.rows) / rate) if rate else None,
            "elapsed_s": _rounded(time.time() - self._began),
        }

    def figures(self) -> dict[str, Any]:
        """The measured parts of a `Report`."""
        inference = None
        if self._first_request is not None and self._last_row is not None:
            inference = max(self._last_row - self._first_request, 1e-6)
        tokens = self.tokens_known and self.rows > 0
        return {
            "counts": Counts(planned=self.planned, succeeded=self.rows, invalid_output=self.invalid),
            "tokens": Tokens(
                input=self.input_tokens if tokens else None,
                output=self.output_tokens if tokens else None,
            ),
            "seconds": Seconds(
                engine_start=_rounded(self._first_request - self._began) if self._first_request else None,
                inference=_rounded(inference),
                publish=_rounded(self._publish),
            ),
            "throughput": Throughput(
                rows_per_s=_rounded(self.rows / inference) if inference else None,
                input_tokens_per_s=_rounded(self.input_tokens / inference) if inference and tokens else None,
                output_tokens_per_s=_rounded(self.output_tokens / inference)
                if inference and tokens
                else None,
            ),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
