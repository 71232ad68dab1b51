"""A name is taken as it is written: what is a pattern elsewhere names one file or folder here."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.addresses import EXTRA_SCHEMES
from airflow_provider_raydatallm.processor.storage.store import Store

#: Each matches what others call their folders.
NAMES = ["own*", "own?", "o[vw]n", "**", "own[*]"]
OTHERS = ["own", "ovn", "own1", "own-other", "own/n", "own[*]"]


@pytest.fixture(params=["disk", "memory", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_store").url)
    monkeypatch.setenv(EXTRA_SCHEMES, "memory")
    return str(tmp_path) if request.param == "disk" else f"memory://{uuid.uuid4().hex}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_name_with_characters_of_patterns_is_one_name(lake: str, name: str) -> None:
    whole, own = Store(lake), Store(f"{lake}/{name}")
    others = [f"{other}/a/f" for other in OTHERS if other != name]
    for other in others:
        whole.put(other, b"other")
    own.put("a/f", b"own")
    own.put("a/b/f", b"own")
    own.put("a*", b"own")
    assert (own.names(), own.names("a")) == (["a", "a*"], ["b", "f"])
    assert own.tree("") == ["a*", "a/b/f", "a/f"]
    assert own.place(own, "a/f", "g")
    own.keep_damaged_file("g", "it is bad", "it is made again")
    [kept] = [kept for kept in own.names() if kept.startswith("_damaged-")]
    assert own.read(kept) == b"own"
    own.put("ab", b"own")
    own.remove_all(["a*"])
    assert own.tree("") == [kept, "a/b/f", "a/f", "ab"]
    own.remove_file("ab")
    own.put("a*", b"own")
    own.remove_file("a*")
    assert own.tree("") == [kept, "a/b/f", "a/f"]
    own.remove("a")
    own.remove("a")
    assert own.names() == [kept]
    own.remove(kept)
    own.remove("")
    assert own.tree("") == []
    assert [whole.read(other) for other in others] == [b"other"] * len(others)
