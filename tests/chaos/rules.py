"""Slices whose rows depend on the rule by which their input is read: the same files are other rows by another
rule."""

from __future__ import annotations

import datetime as dt
import io
import random
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.storage.filesystem import open_fs
from tests.support.in_process import job_of

KEY = "2026-01-31"
_ZONES = ("UTC", "America/New_York")
_DELIMITERS = (",", ";")
_ENCODINGS = ("utf-8", "latin-1")
#: What a run does about other input, or another rule, than the published one's.
POLICIES: dict[str, dict[str, str]] = {
    "fail": {}, "extend": {"rerun__on_input_change": "extend"},
    "recompute": {"rerun__on_input_change": "recompute", "rerun__on_config_change": "recompute"},
}  # fmt: skip

Row = dict[str, Any]


@dataclass(frozen=True)
class RuleSlice:
    """`rule`: what of it changes (`trials.RULES`). By 0 and 1 the input has other rows."""

    root: str
    rule: str
    seed: str

    def _names(self, count: int) -> list[str]:
        rng = random.Random(f"rule {self.seed}")
        return [f"row {i} żółć {rng.getrandbits(32):x}" for i in range(count)]

    def _times(self) -> list[Row]:
        begin = dt.datetime(2026, 1, 30, 12, tzinfo=dt.UTC)
        return [
            {"id": i, "name": name, "at": begin + dt.timedelta(minutes=30 * i)}
            for i, name in enumerate(self._names(110))
        ]

    def write_input(self) -> None:
        fs, path = open_fs(f"{self.root}/in")
        fs.makedirs(path, exist_ok=True)
        names = self._names(40)
        if self.rule == "timezone":
            sink = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(self._times()), sink, row_group_size=24)
            fs.pipe_file(f"{path}/0.parquet", sink.getvalue())
            return
        if self.rule == "delimiter":  # by either of them, there is one column that is called name
            lines = ["name,more;name", *(f"{a},x{i};{a[::-1]}" for i, a in enumerate(names))]
        else:
            lines = ["id,name", *(f"{i:03},{name}" for i, name in enumerate(names))]
        fs.pipe_file(f"{path}/0.csv", ("\n".join(lines) + "\n").encode())

    def job(self, rule: int, policy: str = "recompute") -> SliceJob:
        given: dict[str, Any] = dict(POLICIES[policy])
        if self.rule == "timezone":
            given |= {"source__column": "at", "slice_timezone": _ZONES[rule]}
        elif self.rule == "delimiter":
            given |= {"source__csv": {"delimiter": _DELIMITERS[rule]}}
        elif self.rule == "encoding":
            given |= {"source__encoding": _ENCODINGS[rule]}
        elif rule:
            given |= {"source__column_types": {"id": "int64"}}
        prompt = "{name}: {id}" if self.rule == "column types" else "{name}"
        return job_of(
            input_path=f"{self.root}/in",
            output_path=f"{self.root}/out",
            prompt=prompt,
            slice_key=KEY,
            **given,
        )

    @property
    def key(self) -> str:
        """A column that tells rows apart."""
        return "id" if self.rule == "timezone" else "name"

    def expected(self, rule: int) -> list[Row]:
        names = self._names(40)
        if self.rule == "timezone":
            zone = ZoneInfo(_ZONES[rule])
            rows = [row for row in self._times() if row["at"].astimezone(zone).date().isoformat() == KEY]
        elif self.rule == "delimiter":
            columns = ("name,more", "name") if rule else ("name", "more;name")
            rows = [
                dict(zip(columns, (f"{n},x{i}", n[::-1]) if rule else (n, f"x{i};{n[::-1]}"), strict=True))
                for i, n in enumerate(names)
            ]
        elif self.rule == "encoding":
            rows = [
                {"id": f"{i:03}", "name": n.encode().decode(_ENCODINGS[rule])} for i, n in enumerate(names)
            ]
        else:
            rows = [{"id": i if rule else f"{i:03}", "name": name} for i, name in enumerate(names)]
        text = "{name}: {id}" if self.rule == "column types" else "{name}"
        return [{**row, "answer": text.format(**row)} for row in rows]
