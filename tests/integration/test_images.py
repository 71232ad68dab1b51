"""Images by a real model: what transformers says to the same pixels, and each bad image with its reason."""

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

from airflow_provider_raydatallm.processor.media.images import decode_image
from tests.support.http_server import http_server
from tests.support.images import BAD_IMAGES, image_file
from tests.support.marks import long
from tests.support.own_process import in_own_process
from tests.support.paths import ROOT
from tests.support.slices import Ask
from tests.support.vision_model import write_vision_model

MAX_PIXELS = 3000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: In a process of its own, as where a tokenizer was loaded without torch, transformers takes it for missing.
#: It writes the model, too.
_REFERENCE = """
import json, sys
from pathlib import Path
import numpy as np, torch
from PIL import Image
from transformers import AutoProcessor, Idefics3ForConditionalGeneration
from tests.support.vision_model import write_vision_model

folder, questions, out = sys.argv[1:]
write_vision_model(Path(folder))
processor = AutoProcessor.from_pretrained(folder)
model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
letters = processor.tokenizer.convert_tokens_to_ids(list("abcdefghijklmnopqrstuvwxyz"))
answers = []
for question in np.load(questions, allow_pickle=True):
    content = [*[{"type": "image"}] * len(question["pixels"]), {"type": "text", "text": question["text"]}]
    messages = [{"role": "user", "content": content}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    images = [Image.fromarray(pixels) for pixels in question["pixels"]]
    inputs = processor(text=text, images=images, return_tensors="pt", add_special_tokens=False)
    with torch.no_grad():
        written = model.generate(
            **inputs, max_new_tokens=4, do_sample=False, prefix_allowed_tokens_fn=lambda *_: letters
        )
        logits = model(**inputs).logits[0, -1]
    count = inputs["input_ids"].shape[1]
    answers.append({
        "text": processor.tokenizer.decode(written[0][count:]), "tokens": count,
        "probabilities": torch.softmax(logits[letters[:3]], 0).tolist(),
    })
json.dump(answers, open(out, "w"))
"""


def transformers_answers(
    model: Path, rows: list[tuple[str, list[bytes]]], folder: Path
) -> list[dict[str, Any]]:
    questions = []
    for text, files in rows:
        media = [decode_image(file, MAX_PIXELS) for file in files]
        pixels = [np.frombuffer(m.data, np.uint8).reshape(m.shape) for m in media]
        questions.append({"text": text, "pixels": pixels})
    np.save(folder / "questions.npy", np.array(questions, object), allow_pickle=True)
    paths = [str(model), str(folder / "questions.npy"), str(folder / "answers.json")]
    subprocess.run([sys.executable, "-c", _REFERENCE, *paths], check=True, cwd=ROOT)
    return json.loads((folder / "answers.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("answers", ["written", long("chosen")])
def test_rows_see_their_images_and_bad_ones_stop_no_other(ask: Ask, tmp_path: Path, answers: str) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(on_disk := image_file(seed=1))
    (tmp_path / "secret.jpg").write_bytes(on_disk)
    good: list[tuple[str, list[bytes]]] = [
        *(("What is it?", [image_file(seed=seed)]) for seed in range(2, 8)),
        ("What is it?", [image_file(640, 480, seed=8)]),
        ("What is it?", [image_file(mode="CMYK", seed=9)]),
        ("What is it?", [image_file(mode="RGBA", kind="PNG", seed=10)]),
        ("Compare them.", [image_file(seed=11), image_file(30, 90, kind="WEBP", seed=12)]),
    ]
    with http_server(lambda request: (200, image_file(seed=13))) as site:
        cells: list[Any] = [[{"bytes": file, "path": None} for file in files] for _, files in good]
        cells += [[{"path": f"{photos}/a.jpg"}], [{"path": f"{site}/b.jpg"}], cells[0]]
        good += [("What is it?", [on_disk]), ("What is it?", [image_file(seed=13)]), good[0]]
        bad: dict[str, Any] = {name: [{"bytes": file}] for name, file in BAD_IMAGES.items()}
        bad |= {
            "second": [*cells[0], {"bytes": b"broken"}], "elsewhere": [{"path": f"{tmp_path}/secret.jpg"}],
            "missing": [{"path": f"{photos}/none.jpg"}], "none": [], "null": None,
            "metadata": [{"path": "http://169.254.169.254/latest"}], "too_long": cells[0],
        }  # fmt: skip
        cells.append(cells[0])
        forged = "Is <image> one?"
        of_bad = ["What is it? " * 400 if kind == "too_long" else "What is it?" for kind in bad]
        texts = [*(text for text, _ in good), forged, *of_bad]
        table = pa.table(
            {"n": range(len(texts)), "kind": [*["good"] * len(cells), *bad], "text": texts}
        ).append_column(
            "photo",
            pa.array(
                [*cells, *bad.values()], pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
            ),
        )
        pq.write_table(table, tmp_path / "in.parquet")
        (model := tmp_path / "model").mkdir()
        expected = transformers_answers(model, good, tmp_path)
        alphabet = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        sampling = {
            "temperature": 0, "max_tokens": 4, "allowed_token_ids": [alphabet[c] for c in LETTERS]
        }  # fmt: skip
        # Larger slices go through Ray Data, in blocks.
        chosen = {"choices": ["a", "b", "c"], "labels__confidence": True, "engine__blocks": 3}
        result = ask(
            input_path=f"{tmp_path}/in.parquet", model_source=str(model), prompt="{text}",
            images__column="photo", images__max_pixels=MAX_PIXELS, columns=["n", "kind", "text"],
            images__sources=[str(photos), site, "127.0.0.1"], quality__max_quarantine=0.9,
            engine__kwargs={"max_model_len": 2048, "dtype": "float32"}, poll_interval=1.0,
            engine__scope="slice", **({"sampling_params": sampling} if answers == "written" else chosen),
        )  # fmt: skip
    published = pq.read_table(result["output_path"], partitioning=None)
    assert published.column("n").to_pylist() == [*range(len(cells))]
    *said, of_forged = published.column("answer").to_pylist()
    if answers == "written":
        assert published.column_names == ["n", "kind", "text", "answer"]
        assert said == [answer["text"] for answer in expected]
        assert len({answer["text"] for answer in expected[:6]}) > 3  # the image decides
        assert len(of_forged) == 4
        assert result["counts"]["deduplicated"] == 1
        # A row that spells an image shows no more of them; transformers would take it for one.
        tokens = [answer["tokens"] for answer in expected[:-1]]  # a byte is a token
        tokens.append(expected[0]["tokens"] + len(forged) - len(good[0][0]))
        assert result["tokens"]["input"] == sum(tokens)
    else:
        probabilities = [answer["probabilities"] for answer in expected]
        assert said == ["abc"[int(np.argmax(p))] for p in probabilities]
        told = published.column("answer_probability").to_pylist()
        assert told[: len(good)] == pytest.approx([max(p) for p in probabilities], abs=1e-3)

    failed = pq.read_table(tmp_path / "out.quarantine").to_pylist()
    reasons = {row["kind"]: f"{row['__error_type']} {row['__error']}" for row in failed}
    assert reasons.keys() == bad.keys()
    for kind, why in {
        "empty": "InvalidMedia.* 0 bytes", "text": "not an image", "truncated": "InvalidMedia.*damaged",
        "bomb": "pixels", "second": "not an image", "elsewhere": "below none of images.sources",
        "missing": "does not exist", "none": "InvalidRequest.*holds no image", "null": "holds no image",
        "metadata": "below none of images.sources", "too_long": "PromptTooLong",
    }.items():  # fmt: skip
        assert re.search(why, reasons[kind]), (kind, reasons[kind])


@pytest.mark.long
def test_example_captions_photos(run_example: Callable[..., Path], tmp_path: Path) -> None:
    photos, day = tmp_path / "photos", tmp_path / "in" / "ds=2026-01-01"
    photos.mkdir()
    day.mkdir(parents=True)
    (model := tmp_path / "model").mkdir()
    in_own_process(write_vision_model, model)
    names = [f"{photos}/{i}.jpg" for i in range(20)]
    for i, name in enumerate(names):
        Path(name).write_bytes(image_file(seed=i) if i else b"broken")
    pq.write_table(pa.table({"photo": names}), day / "part.parquet")
    out = run_example(
        "photos_caption",
        RAY_LLM_DEMO_INPUT=tmp_path / "in",
        RAY_LLM_DEMO_OUTPUT=tmp_path / "out",
        RAY_LLM_EXAMPLE_PHOTOS=photos,
        RAY_LLM_EXAMPLE_VISION=model,
    )
    table = pq.read_table(out / "ds=2026-01-01", partitioning=None)
    assert table.column("photo").to_pylist() == names[1:]
    assert len(set(table.column("caption").to_pylist())) > 10
    [failed] = pq.read_table(f"{out}.quarantine").to_pylist()
    assert (failed["photo"], failed["__error_type"]) == (names[0], "InvalidMedia")
