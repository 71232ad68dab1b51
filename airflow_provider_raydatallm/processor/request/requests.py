"""From input rows to requests: chat messages and sampling parameters."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.engine_arguments import with_biases
from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn
from airflow_provider_raydatallm.processor.columns import (
    AGAIN,
    CARRIED_ROW_FIELD,
    FILES_FIELD,
    REQUEST_FIELDS,
    describe_error,
    describe_users_error,
    failed_table,
)
from airflow_provider_raydatallm.processor.input.plan import Plan
from airflow_provider_raydatallm.processor.input.publishable import CheckedReader
from airflow_provider_raydatallm.processor.media.cells import MediaFile, files_of_cell
from airflow_provider_raydatallm.processor.request.adapter_choice import AdapterChoice
from airflow_provider_raydatallm.processor.request.conversation import check_messages, read_conversation
from airflow_provider_raydatallm.processor.request.feedback import Attempt, Feedback, with_feedback
from airflow_provider_raydatallm.processor.request.prompt import FIELD, Row, Template, as_text
from airflow_provider_raydatallm.processor.request.row_function import RowFunction
from airflow_provider_raydatallm.processor.request.row_values import read_rows
from airflow_provider_raydatallm.processor.store.spans import Spans

#: Error type of rows with a value that Python cannot hold: text that is no UTF-8, a date beyond year 9999.
INVALID_CELL = "InvalidCell"
_encode = json.JSONEncoder(ensure_ascii=False, default=as_text).encode


class RequestBuilder:
    """Builds a row's request: `{"messages": [...], "sampling_params": {...}, "cells": [...]}`.

    `cells` says for each message which parts of its content, as (start, stop), come from the row; null: all
    of it. There, the text of a control token is plain text (`engines/control_tokens`). It is left out for
    messages that `preprocess` returns: all their text counts as the row's, since a function may put its
    values anywhere.

    `adapter` is the digest of the row's adapter, and left out for the model itself. So requests that differ
    by their adapters only are different ones.

    `again` says that an answer from before is none, to requests that are asked once more (`asking_again`).

    `sampling_params` values that are exactly `"{column}"` take that row's value, with its type; null leaves
    the parameter out.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        prompt: str | None = None,
        messages: str | None = None,
        system_prompt: str | None = None,
        query: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        structured_outputs: Mapping[str, Any] | None = None,
        preprocess: Callable[[dict[str, Any]], Any] | None = None,
        media: MediaColumn | None = None,
        image_sources: MediaSources | None = None,
        adapter: AdapterChoice | None = None,
    ) -> None:
        """
        :param messages: column of conversations.
        :param media: its column is one that the input has beside `columns`, or among them.
        :param image_sources: where images of messages may lie. None: messages hold text only.
        """
        self.media = media
        self._adapter = adapter
        self._is_again = False
        self._all_columns = list(columns)
        self._conversation = messages
        self._image_sources = image_sources
        self._prompt = Template(prompt, columns) if prompt is not None else None
        #: Messages before the prompt's, by their role.
        self._before: dict[str, Template] = {}
        if system_prompt:
            self._before["system"] = Template(system_prompt, columns, argument="system_prompt")
        if query:
            self._before["query"] = Template(query, columns, argument="query")
        self._preprocess = preprocess
        if isinstance(preprocess, RowFunction):
            preprocess.check_columns(columns)
        self._fixed_params: dict[str, Any] = {}
        self._column_params: dict[str, str] = {}
        for name, value in (sampling_params or {}).items():
            used: list[str] = []
            if isinstance(value, str) and FIELD.fullmatch(value):
                used = Template(value, columns, argument=f"sampling_params[{name!r}]").columns
            if used:
                self._column_params[name] = used[0]
            else:
                self._fixed_params[name] = value
        if structured_outputs:
            self._fixed_params["structured_outputs"] = dict(structured_outputs)

    def asking_again(self) -> RequestBuilder:
        """Returns one whose requests no earlier answer answers, such as an identical request's."""
        again = copy.copy(self)
        again._is_again = True
        return again

    @property
    def columns(self) -> list[str]:
        """Input columns that requests need: only these enter the pipeline."""
        parameters = self._preprocess.columns if isinstance(self._preprocess, RowFunction) else None
        files = self.file_columns
        if self._preprocess is not None and parameters is None:
            return list(dict.fromkeys(chain(self._all_columns, files)))
        templates = [t.columns for t in (*self._before.values(), self._prompt) if t is not None]
        conversation = [] if self._conversation is None else [self._conversation]
        named = [self._adapter.column] if self._adapter is not None and self._adapter.column else []
        used = chain(parameters or (), conversation, *templates, self._column_params.values(), named, files)
        return list(dict.fromkeys(used))

    @property
    def file_columns(self) -> list[str]:
        return [self.media.column] if self.media is not None else []

    def build(self, row: Row) -> dict[str, Any]:
        """:raises SliceError: when `preprocess` returns no request, a column holds no conversation or no
        parameter, or the row names no adapter."""
        digest = self._adapter.of_row(row) if self._adapter is not None else None
        request = self._build(row)
        try:
            params = with_biases(request["sampling_params"])
        except ValueError as e:
            raise SliceError(
                "sampling_params of the row are not valid", kind="input", row_texts=(str(e),)
            ) from None
        request = {**request, "sampling_params": params}
        if digest is not None:
            request = {"adapter": digest, **request}
        return {AGAIN: True, **request} if self._is_again else request

    def _build(self, row: Row) -> dict[str, Any]:
        row_params = {n: row[c] for n, c in self._column_params.items() if row[c] is not None}
        params = self._fixed_params | row_params
        if self._conversation is not None:
            turns = read_conversation(self._conversation, row[self._conversation], self._image_sources)
            return {**self._messages(row, turns, [None for _ in turns]), "sampling_params": params}
        if self._preprocess is None:
            assert self._prompt is not None
            prompt, cells = self._prompt.render_with_cells(row)
            return {**self._messages(row, [_message("user", prompt)], [cells]), "sampling_params": params}
        result = self._preprocess(dict(row))
        if isinstance(result, str):
            result = {"prompt": result}
        if not isinstance(result, Mapping) or ("prompt" in result) == ("messages" in result):
            raise SliceError(
                "preprocess must return a prompt (text) or a dict with either 'prompt' or 'messages'",
                kind="input",
                row_texts=(f"it returned {result!r:.200}",),
            )
        if unknown := set(result) - {"prompt", "messages", "sampling_params"}:
            raise SliceError(
                "preprocess returned unknown keys",
                kind="input",
                advice="Use prompt or messages, sampling_params",
                row_texts=[f"{key!r:.100}" for key in sorted(unknown, key=str)],
            )
        if "messages" in result:
            request = {"messages": check_messages(result["messages"], self._image_sources)}
        else:
            prompt = str(result["prompt"])
            request = self._messages(row, [_message("user", prompt)], [[(0, len(prompt))]])
        return {**request, "sampling_params": {**params, **(result.get("sampling_params") or {})}}

    def files(self, row: Row) -> list[MediaFile] | None:
        """A row's images, or recordings; None where rows have none.

        :raises SliceError: for a row without any.
        """
        return None if self.media is None else files_of_cell(self.media, row[self.media.column])

    def _messages(
        self,
        row: Row,
        messages: list[dict[str, Any]],
        cells: Sequence[Sequence[tuple[int, int]] | None],
    ) -> dict[str, Any]:
        """Puts the system message, or the query, before others."""
        before = [(role, *template.render_with_cells(row)) for role, template in self._before.items()]
        return {
            "messages": [*(_message(role, content) for role, content, _ in before), *messages],
            "cells": [*(spans for _, _, spans in before), *cells],
        }


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


class RequestReader:
    """Reads units and yields the requests of their missing rows. Rows without a valid request have failed."""

    def __init__(
        self,
        plan: Plan,
        builder: RequestBuilder,
        *,
        carry_row: bool,
        feedback: Feedback | None = None,
        is_sample: bool = False,
    ) -> None:
        """
        :param feedback: for rows whose answers were invalid.
        :param is_sample: nobody answers the requests: only what they need is read.
        """
        self._plan = plan
        self._is_sample = is_sample
        self._rows: CheckedReader | None = None
        self._feedback = feedback
        self._builder = builder
        self._carry_row = carry_row
        has_files = builder.media is not None
        self._schema = pa.schema(
            [*REQUEST_FIELDS, *[CARRIED_ROW_FIELD] * carry_row, *[FILES_FIELD] * has_files]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}

    def check_ahead(self, indices: Iterable[int], *, is_retry: bool = False) -> None:
        """See `CheckedReader.check_ahead`."""
        self._open().check_ahead(indices, is_retry=is_retry)

    def __call__(self, index: int, spans: Spans) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yields tables of requests and of failed rows.

        :raises SliceError: before the first one, when a row of the unit cannot be published.
        """
        first = 0
        starts, stops = spans.T
        for table in self._read(index):
            offsets = np.arange(first, first + table.num_rows)
            span = np.searchsorted(starts, offsets, side="right") - 1
            wanted = offsets[(span >= 0) & (offsets < stops[span])]
            if len(wanted):
                rows = table if len(wanted) == len(offsets) else table.take(pa.array(wanted - first))
                yield self._build_requests(index, wanted, rows)
            first += table.num_rows
            if first >= stops[-1]:
                return

    def _read(self, index: int) -> Iterator[pa.Table]:
        if self._is_sample:
            return self._plan.read(self._plan.units[index], self._builder.columns)
        return self._open().read(index)

    def _open(self) -> CheckedReader:
        self._rows = self._rows or CheckedReader(self._plan, self._builder.columns)
        return self._rows

    def _build_requests(self, index: int, offsets: np.ndarray, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        count = len(offsets)
        rows, unreadable = read_rows(table)
        invalid: dict[int, list[Attempt]] = {}
        if self._feedback is not None:
            invalid = self._feedback.window(index, int(offsets[0]), int(offsets[-1]) + 1)
        requests: list[bytes | None] = []
        carried_rows: list[bytes | None] = []
        files: list[list[dict[str, Any]] | None] = []
        failures: list[tuple[int, str, str]] = []
        for i, row in enumerate(rows):
            request = carried = row_files = None
            try:
                if i in unreadable:
                    raise unreadable[i]
                if self._carry_row:  # before preprocess, which may change what the row holds
                    carried = _to_json({n: v for n, v in row.items() if n not in self._builder.file_columns})
                row_files = self._builder.files(row)
                built_request = self._builder.build(row)
                if (offset := int(offsets[i])) in invalid:
                    built_request = with_feedback(built_request, invalid[offset])
                request = _to_json(built_request)
            except Exception as e:  # preprocess is the user's
                failures.append((i, *_describe(e, is_unreadable=i in unreadable)))
            requests.append(request)
            carried_rows.append(carried)
            files.append(None if row_files is None else [file._asdict() for file in row_files])
        columns: list[Any] = [[index] * count, offsets, requests]
        columns += [values for values, f in ((carried_rows, CARRIED_ROW_FIELD), (files, FILES_FIELD))
                    if f in self._schema]  # fmt: skip
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        built = pa.Table.from_arrays(arrays, schema=self._schema)
        return built.filter(built.column("__request").is_valid()), failed_table(built, failures)


def _to_json(value: Any) -> bytes:
    """:raises UnicodeEncodeError: for half a character (a lone surrogate), which no text can hold."""
    return _encode(value).encode()


def _describe(error: Exception, *, is_unreadable: bool) -> tuple[str, str]:
    """A failed row's error type and message."""
    if isinstance(error, SliceError):
        return (INVALID_CELL if is_unreadable else "InvalidRequest"), describe_error(error)
    return type(error).__name__, describe_users_error("preprocess", error)
