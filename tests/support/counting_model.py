"""A model whose answers say which time a row is asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pyarrow as pa

from tests.support import stub_engine


class CountingModel:
    """Cuts the answers to every fifth row, and says which time it is asked. Fails of every 20th row."""

    def __init__(self, cuts: Callable[[int], bool] = lambda n: n % 5 == 0) -> None:
        self.asked: Counter[int] = Counter()
        self.cuts = cuts
        self.fails: Callable[[int], bool] = lambda n: n % 20 == 7

    def __call__(self, batch: pa.Table) -> pa.Table:
        rows = [int(json.loads(text)["messages"][-1]["content"]) for text in batch["__request"].to_pylist()]
        self.asked.update(rows)
        answers = stub_engine.answer(batch)
        errors = ["broken" if self.fails(n) else None for n in rows]
        texts = [
            None if error else f"{n}, asked {self.asked[n]}" for n, error in zip(rows, errors, strict=True)
        ]
        values = {
            "text": texts, "error": errors, "error_type": [error and "Broken" for error in errors],
            "finish_reason": ["length" if self.cuts(n) else "stop" for n in rows],
        }  # fmt: skip
        for name, of_rows in values.items():
            field = answers.schema.field(name)
            answers = answers.set_column(
                answers.schema.get_field_index(name), field, pa.array(of_rows, field.type)
            )
        return answers
