"""The record of a failure: made where it is known, and shown alike by exception, log, page and command line.

Its texts quote others: Ray, vLLM, the user's code, the data. So it is made safe once, here: each text is
escaped and bounded, and what looks like a secret is masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, cast, get_args

from airflow_provider_raydatallm.contract.log.plain_text import plain_text, short_paths
from airflow_provider_raydatallm.contract.log.secret_shapes import without_secrets

Kind = Literal[
    "input",  # an argument, a connection or the data is wrong
    "model",  # missing, incomplete, or not permitted
    "cluster",  # this cluster cannot run it
    "connection",  # the connection is invalid, or the cluster refuses its token
    "no_connection",  # Airflow knows none of this name now
    "unreachable",  # the cluster, or Airflow's own servers, do not answer
    "queue",  # no room in time
    "gpu_memory",
    "engine",  # a process or a node of the job died
    "stopped",  # by a person, its task, a signal, or because no task waited
    "timeout",  # the task's execution_timeout has passed
    "transient",  # anything else
]
#: What a program tells apart among failures of a kind. `too_many_failed`: more than `quality.max_quarantine`;
#: `published`: what an earlier run published is there, and not what this one asks for.
Code = Literal["", "too_many_failed", "published"]
#: Kinds after which no retry can succeed.
FINAL: frozenset[Kind] = frozenset({"input", "model", "cluster", "connection"})

#: Advice where a run that failed has finished rows.
KEPT = "Finished rows are kept, and a retry continues with the rest"

#: Most characters of a text, by field, and most texts.
_CHARACTERS = {
    "sentence": 2000, "advice": 1000, "cause": 4000, "row_texts": 1000, "log": 1000, "log_of": 100,
    "frames": 600,
}  # fmt: skip
_TEXTS = {"advice": 8, "row_texts": 8, "log": 40, "frames": 2}
_PLACE_CHARACTERS, _COUNTS, _COUNT_CHARACTERS = 500, 20, 50
#: Of a sentence that is shortened.
_LEAST_CHARACTERS = 40
#: The file and line that a frame begins with. A name with spaces may be a text, and does not count.
_FILE_AND_LINE = re.compile(r"at [\w./+~-]+\.py:\d+")
#: Of a text, before it is made safe.
_READ_CHARACTERS = 100_000


@dataclass(frozen=True)
class Place:
    """Where a failure happened, as far as it is known.

    :param row: its number in the file, from 1, as in all texts; the header of a CSV file is no row.
    :param worker: the engine's.
    """

    file: str | None = None
    column: str | None = None
    row: int | None = None
    worker: str | None = None
    node: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                object.__setattr__(self, name, _safe(value, _PLACE_CHARACTERS))

    def __str__(self) -> str:
        """Such as `s3://in/a.csv, row 7, column 'age'`; "" where nothing is known."""
        parts = [
            self.file,
            None if self.row is None else f"row {self.row:,}",
            self.column and f"column {self.column!r}",
            self.worker and f"worker {self.worker}",
            self.node and f"node {self.node}",
        ]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Failure:
    """
    :param kind: decides whether a retry can help (`FINAL`).
    :param sentence: what is wrong, with the value, without a full stop. Never a text of a row.
    :param advice: what to do about it: sentences without a full stop.
    :param cause: the root error, in the words of who raised it.
    :param row_texts: what rows or answers hold, where that shows what is wrong: a setting may hide them.
    :param counts: rows at that moment, such as `planned`, `finished`, `failed`.
    :param log: last lines of a log that may say more.
    :param log_of: whose log that is; "": the Ray job's, or a process's of it.
    :param frames: last lines of the user's own code on the way to the root error.
    :param code: which failure it is, where a program acts on it; "": any other.
    :param before_rows: whether no row was asked yet, so that the words of others quote none.
    """

    kind: Kind
    sentence: str
    advice: tuple[str, ...] = ()
    place: Place = Place()
    cause: str = ""
    row_texts: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    log_of: str = ""
    frames: tuple[str, ...] = ()
    code: Code = ""
    before_rows: bool = False

    def __post_init__(self) -> None:
        for name, characters in _CHARACTERS.items():
            value: str | Sequence[str] = getattr(self, name)
            if isinstance(value, str):
                lines = name == "cause"
                safe: Any = _safe(value, characters, lines=lines)
            else:
                last = value[-_TEXTS[name] :] if name in ("log", "frames") else value[: _TEXTS[name]]
                safe = tuple(_safe(text, characters) for text in last if text)
            object.__setattr__(self, name, safe)
        counts = list(self.counts.items())[:_COUNTS]
        object.__setattr__(self, "counts", {_safe(name, _COUNT_CHARACTERS): n for name, n in counts})

    @property
    def can_retry(self) -> bool:
        return self.kind not in FINAL

    @property
    def headline(self) -> str:
        """The sentence, with the rows' texts."""
        return ": ".join(filter(None, [self.sentence, ", ".join(self.row_texts)]))

    @property
    def text(self) -> str:
        """The headline and what to do, in one line."""
        return joined([self.headline, *self.advice])

    @property
    def count_words(self) -> str:
        """Such as `195 planned = 62 answered + 3 failed (2 invalid output) + 130 left`: of the finished rows,
        some failed. "" where the counts are none of one moment."""
        counts = dict(self.counts)
        planned, finished, failed = (counts.pop(name, 0) for name in ("planned", "finished", "failed"))
        answered, left = finished - failed, planned - finished
        if not planned or min(answered, left, failed) < 0:
            return ""
        kinds = ", ".join(f"{rows:,} {name.replace('_', ' ')}" for name, rows in counts.items() if rows)
        parts = [
            f"{answered:,} answered",
            *([f"{failed:,} failed" + (f" ({kinds})" if kinds else "")] if failed else ()),
            *([f"{left:,} left"] if left else ()),
        ]
        return f"{planned:,} planned = {' + '.join(parts)}"

    @property
    def message(self) -> str:
        """For people, in lines: the text, the root error where it says more, and the user's own code."""
        cause = "" if self.cause in self.sentence else self.cause
        return "\n".join(filter(None, [self.text, cause, *self.frames]))

    def without_row_texts(self) -> Failure:
        """Returns it without what may quote a row: for messages and for other systems. Of the user's own code
        it says which line it is."""
        if self.before_rows:
            return replace(self, row_texts=(), log=(), log_of="")
        lines = tuple(match[0] for frame in self.frames if (match := _FILE_AND_LINE.match(frame)))
        return replace(
            self, sentence=self._own_sentence(), cause="", row_texts=(), log=(), log_of="", frames=lines
        )

    def _own_sentence(self) -> str:
        """The sentence, of whose words of others, at its end, only the error's class is left: they may quote
        a row."""
        parts = self.sentence.split(": ")
        for i in range(len(parts) if self.cause else 0):
            rest = ": ".join(parts[i:]).removesuffix(" ...")
            if rest and self.cause.startswith(rest):
                return ": ".join([*parts[:i], self.cause.partition(":")[0]])
        return self.sentence

    def about(self, subject: str) -> Failure:
        """Returns it with a subject before the sentence, such as a file's name."""
        return replace(self, sentence=f"{subject}: {self.sentence}")

    def to_json(self, most_bytes: int | None = None) -> dict[str, Any]:
        """Returns what JSON and an XCom hold as it is, without empty fields.

        :param most_bytes: of its JSON in ASCII, where that has room for a short sentence; what says least is
            left out first.
        """
        failure, is_shortest = self, False
        while True:
            values = ((n, list(v) if isinstance(v, tuple) else v) for n, v in asdict(failure).items())
            value: dict[str, Any] = {n: v for n, v in values if v not in ("", [], {}, False)}
            value["place"] = {name: at for name, at in value["place"].items() if at is not None}
            if not value["place"]:
                del value["place"]
            if most_bytes is None or is_shortest or len(json.dumps(value)) <= most_bytes:
                return value
            shorter = failure._shorter()
            failure, is_shortest = shorter, shorter == failure

    def _shorter(self) -> Failure:
        """Without the oldest half of the log, then without place and counts, then with half of its longest
        text."""
        if self.log:
            log = self.log[len(self.log) // 2 + 1 :]
            return replace(self, log=log, log_of=self.log_of if log else "")
        if self.counts or self.place != Place():
            return replace(self, counts={}, place=Place())
        name = max(_CHARACTERS, key=lambda name: len("".join(getattr(self, name))))
        value = getattr(self, name)
        if len(value) <= _LEAST_CHARACTERS and name == "sentence":
            return self
        half: Any = value[: len(value) // 2] if isinstance(value, str) or len(value) > 1 else ()
        return replace(self, **{name: half})

    @classmethod
    def parse(cls, value: Any, clean: Callable[[str], str] = str) -> Failure:
        """Reads what `to_json` returned, maybe of another version: fields that this one does not know are
        left out, and a kind that it does not know is `transient`.

        :param clean: applied to each text.
        """
        known = value if isinstance(value, Mapping) else {}
        texts = {
            name: tuple(clean(str(text)) for text in given)
            for name in _TEXTS
            if isinstance(given := known.get(name), list | tuple)
        }
        place, counts = known.get("place"), known.get("counts")
        kind, code, sentence = known.get("kind"), known.get("code"), known.get("sentence")
        return cls(
            kind=cast("Kind", kind) if kind in get_args(Kind) else "transient",
            sentence=clean(sentence) if isinstance(sentence, str) else _UNREADABLE,
            cause=clean(str(known.get("cause") or "")),
            log_of=clean(str(known.get("log_of") or "")),
            place=Place(**dict(_known_places(place, clean))) if isinstance(place, Mapping) else Place(),
            counts=dict(_whole_numbers(counts)) if isinstance(counts, Mapping) else {},
            code=cast("Code", code) if code in get_args(Code) else "",
            before_rows=known.get("before_rows") is True,
            **texts,
        )


def joined(sentences: Sequence[str]) -> str:
    """One line of sentences without full stops; some end in the words of others, with a mark of their own."""
    ended = [f"{text}{'' if text.endswith(('.', '?', '!')) else '.'}" for text in sentences[:-1]]
    return " ".join([*ended, *sentences[-1:]])


_UNREADABLE = "another version of the provider wrote the error, and this one cannot read it"


def _known_places(place: Mapping[str, Any], clean: Callable[[str], str]) -> Iterator[tuple[str, Any]]:
    for at in fields(Place):
        value = place.get(at.name)
        if at.name == "row" and isinstance(value, int):
            yield at.name, value
        elif at.name != "row" and isinstance(value, str):
            yield at.name, clean(value)


def _whole_numbers(counts: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, count in counts.items():
        if isinstance(count, int) and not isinstance(count, bool):
            yield name, count


def _safe(text: str, characters: int, *, lines: bool = False) -> str:
    """
    :param lines: whether it may have several.
    """
    text = text[:_READ_CHARACTERS].encode(errors="replace").decode()  # also half a character
    joint = "\n" if lines else " "
    text = joint.join(filter(None, map(str.rstrip if lines else str.strip, text.splitlines())))
    # Cut twice: a secret may stand where the first cut is, and a key has several lines.
    masked = without_secrets(short_paths(text.lstrip())[: 4 * characters])
    safe = "\n".join(map(plain_text, masked.split("\n"))).strip()
    return safe if len(safe) <= characters else f"{safe[: characters - 4]} ..."
