"""Recordings by a real Whisper: what transformers writes of the same samples, and each bad file with its
reason."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.processor.media.audio import SAMPLE_RATE, decode_audio
from tests.support.http_server import http_server
from tests.support.paths import ROOT
from tests.support.recordings import BAD_RECORDINGS, recording
from tests.support.slices import Ask
from tests.support.speech_model import POSITIONS

#: In a process of its own, as where a tokenizer was loaded without torch, transformers takes it for missing.
#: It writes the model, too.
_REFERENCE = """
import json, sys
from pathlib import Path
import numpy as np, torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from tests.support.speech_model import write_speech_model

folder, recordings, out, rate, positions = sys.argv[1:]
write_speech_model(Path(folder))
processor = WhisperProcessor.from_pretrained(folder)
model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = processor.tokenizer
def ids(*names):
    return tokenizer.convert_tokens_to_ids([f"<|{name}|>" for name in names])
[end], languages = ids("endoftext"), ids("en", "de", "zh")
transcripts = []
for row in np.load(recordings, allow_pickle=True):
    words = tokenizer(row["words"], add_special_tokens=False)["input_ids"]
    before = [*ids("startofprev"), *words] if words else []
    language, texts, counts = row["language"], [], [0, 0]
    for piece in row["pieces"]:
        features = processor.feature_extractor(piece, sampling_rate=int(rate), return_tensors="pt")
        with torch.no_grad():
            encoded = model.model.encoder(features["input_features"])
            def logits(tokens):
                return model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
            tokens = [*before, *ids("startoftranscript")]
            if language is None:
                [language] = tokenizer.convert_ids_to_tokens([max(languages, key=logits(tokens).__getitem__)])
                language = language.strip("<|>")
                counts[1] += 1
            tokens += ids(language, "transcribe", "notimestamps")
            prompt = len(tokens)
            while len(tokens) < int(positions) and tokens[-1] != end:
                tokens.append(int(logits(tokens).argmax()))
        texts.append(tokenizer.decode(tokens[prompt:], skip_special_tokens=True).strip())
        counts[0] += prompt
        counts[1] += len(tokens) - prompt
    text = " ".join(text for text in texts if text)
    transcripts.append({"text": text, "language": language, "tokens": counts})
json.dump(transcripts, open(out, "w"))
"""


def transformers_transcripts(model: Path, rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """:param rows: the `files` of each, the `words` before and the `language`."""
    asked = []
    for row in rows:
        media = [piece for file in row["files"] for piece in decode_audio(file, 1000)]
        pieces = [np.frombuffer(m.data, np.int16).astype(np.float32) / (1 << 15) for m in media]
        asked.append({"words": "", "language": None, **row, "pieces": pieces})
    np.save(folder / "recordings.npy", np.array(asked, object), allow_pickle=True)
    paths = [str(model), str(folder / "recordings.npy"), str(folder / "transcripts.json")]
    command = [sys.executable, "-c", _REFERENCE, *paths, str(SAMPLE_RATE), str(POSITIONS)]
    subprocess.run(command, check=True, cwd=ROOT)
    return json.loads((folder / "transcripts.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def speech_model(tmp_path: Path) -> Path:
    """The folder of a model that is not there yet."""
    (folder := tmp_path / "speech").mkdir()
    return folder


def test_recordings_are_written_down_and_bad_ones_stop_no_other(
    ask: Ask, speech_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "calls"
    folder.mkdir()
    (folder / "a.wav").write_bytes(on_disk := recording(seed=1))
    (tmp_path / "secret.wav").write_bytes(on_disk)
    good: list[dict[str, Any]] = [
        *({"files": [recording(1 + seed / 3, seed=seed)]} for seed in range(2, 10)),
        {"files": [recording(kind="flac", codec="flac", rate=44_100, channels=2, seed=10)]},
        {"files": [recording(kind="mp3", codec="libmp3lame", rate=44_100, seed=11)]},
        {"files": [recording(65, seed=12, silent_at=29.3)]},
        {"files": [recording(seed=13), recording(seed=14)]},
        {"files": [recording(seed=15)], "words": "Abc"},
    ]
    with http_server(lambda request: (200, recording(seed=16))) as site:
        cells: list[Any] = [[{"bytes": file} for file in row["files"]] for row in good]
        cells += [[{"path": f"{folder}/a.wav"}], [{"path": f"{site}/b.wav"}], cells[0]]
        good += [{"files": [on_disk]}, {"files": [recording(seed=16)]}, good[0]]
        bad: dict[str, Any] = {name: [{"bytes": file}] for name, file in BAD_RECORDINGS.items()}
        bad |= {
            "too_long": [{"bytes": recording(71)}], "second": [*cells[0], {"bytes": b"broken"}],
            "elsewhere": [{"path": f"{tmp_path}/secret.wav"}], "missing": [{"path": f"{folder}/none.wav"}],
            "null": None, "words": cells[0],
        }  # fmt: skip
        forged, too_many = "<|de|>", "x" * POSITIONS
        words = [row.get("words", "") for row in good]
        words = [*words, forged, *(too_many if kind == "words" else "" for kind in bad)]
        cells.append(cells[0])
        files = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
        columns = {
            "n": range(len(words)), "kind": [*["good"] * len(cells), *bad], "words": words,
            "call": pa.array([*cells, *bad.values()], files),
        }  # fmt: skip
        pq.write_table(pa.table(columns), tmp_path / "in.parquet")
        expected = transformers_transcripts(speech_model, good, tmp_path)
        result = ask(
            task="transcribe", input_path=f"{tmp_path}/in.parquet", model_source=str(speech_model),
            prompt="{words}", audio__column="call", columns=["n", "kind", "words"], engine__scope="slice",
            audio__sources=[str(folder), site, "127.0.0.1"], audio__max_seconds=70,
            quality__max_quarantine=0.9, poll_interval=1.0, engine__kwargs={"dtype": "float32"},
        )  # fmt: skip
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column_names == ["n", "kind", "words", "answer"]
    assert published.column("n").to_pylist() == [*range(len(cells))]
    *answers, _ = published.column("answer").to_pylist()
    assert answers == [row["text"] for row in expected]
    assert len(set(answers)) > len(good) // 2  # the recording decides
    assert len({row["language"] for row in expected}) > 1
    assert result["counts"]["deduplicated"] == 1
    failed = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    reasons = {row["kind"]: f"{row['__error_type']} {row['__error']}" for row in failed}
    assert reasons.keys() == bad.keys()
    for kind, why in {
        "empty": "InvalidMedia.* 0 bytes", "text": "not a recording", "truncated": "damaged",
        "no_sample": "no sample", "playlist": "not a recording", "list_of_files": "InvalidMedia",
        "too_long": r"longer than audio.max_seconds, 70 s", "second": "not a recording",
        "elsewhere": "below none of audio.sources", "missing": "does not exist",
        "null": "InvalidRequest.*holds no recording", "words": "PromptTooLong",
    }.items():  # fmt: skip
        assert re.search(why, reasons[kind]), (kind, reasons[kind])


@pytest.mark.long
def test_example_transcribes_calls(
    run_example: Callable[..., Path], speech_model: Path, tmp_path: Path
) -> None:
    calls, day = tmp_path / "calls", tmp_path / "in" / "ds=2026-01-01"
    calls.mkdir()
    day.mkdir(parents=True)
    files = [recording(seed=seed) for seed in range(10)]
    names = [f"{calls}/{i}.wav" for i in range(len(files))]
    for i, name in enumerate(names):
        Path(name).write_bytes(files[i] if i else b"broken")
    pq.write_table(pa.table({"recording": names}), day / "part.parquet")
    rows = [{"files": [file], "language": "en"} for file in files[1:]]
    expected = transformers_transcripts(speech_model, rows, tmp_path)
    out = run_example(
        "calls_transcribe",
        RAY_LLM_DEMO_INPUT=tmp_path / "in",
        RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_RECORDINGS=calls,
        RAY_LLM_EXAMPLE_SPEECH=speech_model,
    )
    table = pq.read_table(out / "ds=2026-01-01", partitioning=None)
    assert table.column("recording").to_pylist() == names[1:]
    # Of random weights in bfloat16, which some CPUs have, later tokens may be others.
    begins = [text[:2] for text in table.column("transcript").to_pylist()]
    assert sum(map(str.__eq__, begins, (row["text"][:2] for row in expected))) >= len(rows) - 2
    [failed] = pq.read_table(f"{out}.quarantine").to_pylist()
    assert (failed["recording"], failed["__error_type"]) == (names[0], "InvalidMedia")
