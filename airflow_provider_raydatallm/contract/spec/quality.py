"""Rows that fail for their own reasons."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from airflow_provider_raydatallm.contract.base import Group, Several
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf
from airflow_provider_raydatallm.contract.spec.gate import MOST_GATES, Gate
from airflow_provider_raydatallm.contract.spec.golden import Golden
from airflow_provider_raydatallm.contract.spec.hold import Hold
from airflow_provider_raydatallm.contract.spec.judge import Judge

#: Rows that are asked once more at most: one process compares them all.
MOST_REPEATED = 100_000


class Quality(Group):
    """Rows that fail for their own reasons."""

    max_quarantine: float = leaf(
        0.1,
        affects=Affects.NOTHING,
        doc="share of rows that may fail. Above it the task fails and publishes nothing; finished rows are "
        "kept for the next run. Default: 0.1.",
        ge=0,
        le=1,
    )
    max_invalid: float | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="the same for rows whose answer lacks its shape (`counts.invalid_output`), a limit of their own "
        "beside `max_quarantine`. Default: none.",
        ge=0,
        le=1,
    )
    repair: int = leaf(
        0,
        affects=Affects.REQUEST,
        doc="how often a row whose answer is invalid is asked again, with its answer and what is wrong with "
        "it, before it goes to quarantine. Answers that `max_tokens` cut are not: raise it. Default: 0.",
        ge=0,
        le=10,
    )
    max_attempts: int = leaf(
        1,
        affects=Affects.NOTHING,
        doc="attempts per row, in all, before it goes to quarantine. Default: 1.",
        ge=1,
    )
    gates: Several[Gate] = leaf(
        (),
        affects=Affects.NOTHING,
        doc="what must hold of the slice before it is published, such as "
        '`[{"of": "truncated", "max": 0.02}, {"of": "labels", "against": 7, "max": 0.2, "then": "warn"}]`. '
        "Default: none.",
        max_length=MOST_GATES,
    )
    golden: Golden | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc='rows whose right answers are known, such as `{"path": "s3://lake/golden.csv"}`: the input\'s '
        "columns that the request reads, and one or more of the answers' columns. Each run answers them with "
        "the same engine, publishes none of them, and its report says how many are right. Default: none.",
        address=True,
    )
    repeat: float | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="random rows that are asked once more: the report says how many have another answer then. Below "
        "1 a share of the rows (0.01), from 2 on so many of them (200). Their second answers are not "
        "published. Default: none.",
        gt=0,
        le=MOST_REPEATED,
    )
    judge: Judge | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="a second model that is asked of random answers whether they are right, such as "
        '`{"model": "Qwen/Qwen3-8B", "prompt": "{review} Label: {answer} Is the label right?", '
        '"rows": 200}`. The report says how many it agrees with. Default: none.',
        secret=True,
    )
    on_too_long: Literal["quarantine", "truncate", "raise_limit", "chunk"] = leaf(
        "quarantine",
        affects=Affects.ANSWERS,
        doc="how to handle rows whose prompt plus max_tokens exceeds `max_model_len`: `quarantine` those "
        "whose prompt alone does not fit; `truncate` the end of the prompt's longest message; "
        "`raise_limit`: answer them last, with an engine that has a higher limit; or `chunk`, with "
        '`task="embed"`: publish the mean of the vectors of parts that fit.',
    )

    @field_validator("repeat")
    @classmethod
    def _check_repeat(cls, value: float | None) -> float | None:
        if value == 1:  # nothing tells 1 from 1.0, and one row tells nothing
            raise ValueError(
                "1 could be one row, or all of them: give a share below 1, or a number of rows from 2 on"
            )
        if value is not None and value >= 1 and value % 1:
            raise ValueError(
                f"{value:g} is neither a number of rows nor a share of them: give a whole one, or one below 1"
            )
        return value

    @property
    def own_checks(self) -> list[str]:
        """Functions and queries that gates ask of the answered rows, each once."""
        return list(dict.fromkeys(gate.of for gate in self.gates if gate.is_own_check))

    @property
    def measured_columns(self) -> list[str]:
        """Columns of the answers whose numbers or lengths gates look at, each once."""
        return list(dict.fromkeys(gate.column for gate in self.gates if gate.column is not None))

    @property
    def functions(self) -> list[str]:
        """The functions among them."""
        return list(dict.fromkeys(gate.function for gate in self.gates if gate.function is not None))


class TaskQuality(Quality):
    """Rows that fail for their own reasons, and slices that should not be published."""

    # How the task waits, which is no part of the job: `task.hold` reads it.
    hold: Hold = leaf(
        Hold(),
        affects=Affects.NOTHING,
        doc='who decides of a slice that a gate with `"then": "hold"` holds, such as `{"users": ["alice"], '
        '"reject_after": "2d"}`. Default: everybody who may answer the DAG\'s required actions, and it waits '
        "until one of them does.",
    )
