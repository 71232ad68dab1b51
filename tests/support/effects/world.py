"""The files of the jobs that are observed: inputs, tokenizers and adapters."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.adapters import write_adapter
from tests.support.bert import write_bert_tokenizer
from tests.support.images import image_file
from tests.support.recordings import recording
from tests.support.speech_model import write_speech_tokenizer
from tests.support.vision_model import write_vision_tokenizer

KEY = "2026-01-31"
#: Shows all that a template is given.
_TEMPLATE = (
    "{% if tone %}{{ tone }}{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Far more tokens than the others have; a token is a byte.
_LONG = "two " * 100


@dataclass(frozen=True)
class World:
    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def write_world(folder: Path) -> World:
    _write_rows(folder)
    _write_media(folder)
    write_vision_tokenizer(folder / "model", _TEMPLATE)
    write_vision_tokenizer(folder / "other-model", f"New. {_TEMPLATE}")
    write_bert_tokenizer(folder / "bert")
    write_speech_tokenizer(folder / "speech")
    for name, alpha in (("acme", 4), ("beta", 9)):
        write_adapter(folder / name, lora_alpha=alpha)
    return World(folder)


def _write_rows(folder: Path) -> None:
    """The first and the last row ask the same."""
    chats = [json.dumps([{"role": "user", "content": text}]) for text in ("one", "two", "three", "one")]
    instants = [
        dt.datetime(2026, 1, day, hour, tzinfo=dt.UTC) for day, hour in ((31, 10), (31, 20), (30, 20), (9, 9))
    ]
    columns = {
        "a": ["one", _LONG, "three", "one"],
        "b": ["x", "y", "z", "x"],
        "n": [1, 2, 3, 1],
        "key_1": [KEY, KEY, "o", "o"],
        "key_2": [KEY, "o", KEY, "o"],
        "day": [dt.date(2026, 1, 1), dt.date(2026, 1, 5), dt.date(2026, 5, 1), dt.date(2026, 5, 5)],
        "at": pa.array(instants, pa.timestamp("us", tz="UTC")),
        "tenant_1": ["acme", "beta", None, "acme"],
        "tenant_2": ["beta", "acme", None, "beta"],
        "chat_1": chats,
        "chat_2": [chat.replace("one", "uno") for chat in chats],
    }
    for name, written in (("rows", columns), ("other-rows", {**columns, "b": ["u", "v", "w", "u"]})):
        (folder / name).mkdir()
        pq.write_table(pa.table(written), folder / name / "rows.parquet")
    for key in (KEY, "2026-02-01"):
        (folder / "of-slices" / key).mkdir(parents=True)
        pq.write_table(pa.table({"a": ["one"], "b": [key]}), folder / "of-slices" / key / "rows.parquet")
    (folder / "csv").mkdir()
    (folder / "csv" / "rows.csv").write_bytes("a,b,n\none,'x',1\ntw\xe9\x80,'y',2\n".encode("latin-1"))
    (folder / "lines").mkdir()
    (folder / "lines" / "rows.jsonl").write_text('{"a": "one"}\n{"a": "two"}\n')
    (folder / "golden.jsonl").write_text('{"a": "four", "answer": "red"}\n')


def _write_media(folder: Path) -> None:
    """Files by their addresses. The last one is larger than the others."""
    (folder / "media").mkdir()
    (folder / "files").mkdir()
    columns: dict[str, list[str]] = {"a": ["one", "two", "three", "four"]}
    files = {
        "photo": [*(image_file(seed=seed) for seed in range(3)), image_file(256, 192, seed=3)],
        "sound": [*(recording(0.2, seed=seed) for seed in range(3)), recording(1.0, seed=3)],
    }
    for kind, contents in files.items():
        paths = [folder / "files" / f"{kind}-{n}" for n in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        columns |= {f"{kind}_1": [*map(str, paths)], f"{kind}_2": [*map(str, paths[::-1])]}
    pq.write_table(pa.table(columns), folder / "media" / "rows.parquet")
