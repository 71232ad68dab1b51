from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.tasks.base import MediaColumn
from airflow_provider_raydatallm.processor.media import cells, medium, reader
from airflow_provider_raydatallm.processor.media.cells import MediaFile, check_media_column, files_of_cell
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium
from airflow_provider_raydatallm.processor.media.reader import MediaReader
from tests.support.http_server import http_server
from tests.support.images import BAD_IMAGES, image_file
from tests.support.recordings import recording
from tests.support.slice_jobs import slice_job, spec


def media_reader(**fields: Any) -> MediaReader:
    required = dict.fromkeys(("slice_key", "input_path", "output_path", "model_source", "prompt"), "x")
    return MediaReader(spec(**required, images__column="photo", **fields))


def photos(column: str = "photo") -> MediaColumn:
    media = slice_job(images__column=column).task.media
    assert media is not None
    return media


@pytest.mark.parametrize(("cell", "files"), [
    (b"abc", [MediaFile(b"abc")]), ("/a.jpg", [MediaFile(None, "/a.jpg")]), (b"", [MediaFile(b"")]),
    ({"bytes": b"abc", "path": "a.jpg"}, [MediaFile(b"abc")]),
    ({"bytes": None, "path": "/a.jpg"}, [MediaFile(None, "/a.jpg")]),
    ([b"a", b"b"], [MediaFile(b"a"), MediaFile(b"b")]),
    ([{"path": "/a"}, {"path": "/b"}], [MediaFile(None, "/a"), MediaFile(None, "/b")]),
])  # fmt: skip
def test_cell_becomes_files(cell: Any, files: list[MediaFile]) -> None:
    assert files_of_cell(photos(), cell) == files
    column = pa.chunked_array([cells.to_array([files, files])])
    assert cells.from_array(column) == [files, files]


@pytest.mark.parametrize("cell", [None, "", [], [None], [b"a", None], {"bytes": None, "path": None}])
def test_row_without_an_image_is_refused(cell: Any) -> None:
    with pytest.raises(SliceError, match="'photo' holds no image"):
        files_of_cell(photos(), cell)


def test_row_with_too_many_images_is_refused() -> None:
    with pytest.raises(SliceError, match="holds 65 images, and a row takes at most 64"):
        files_of_cell(photos(), [b"a"] * 65)


@pytest.mark.parametrize("kind", [
    pa.binary(), pa.large_binary(), pa.string(), pa.list_(pa.binary()), pa.large_list(pa.large_string()),
    pa.struct({"bytes": pa.binary(), "path": pa.string()}), pa.list_(pa.struct({"path": pa.string()})),
])  # fmt: skip
def test_columns_that_hold_files_are_accepted(kind: pa.DataType) -> None:
    check_media_column(photos(), pa.schema({"photo": kind}))


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.float32()), pa.struct({"x": pa.binary()}), pa.null()]
)
def test_columns_of_other_kinds_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(SliceError, match=r"'photo', of .*type.*: images are bytes, an address") as refused:
        check_media_column(photos(), pa.schema({"photo": kind}))
    assert refused.value.kind == "input"
    with pytest.raises(SliceError, match=r"does not have: the columns are 'photo'"):
        check_media_column(photos("image"), pa.schema({"photo": kind}))


def test_files_are_read_from_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"on disk")
    with http_server(lambda request: (200, b"of a site")) as site:
        opened = media_reader(images__sources=(str(tmp_path), site, "127.0.0.1")).read([
            [MediaFile(b"in the row"), MediaFile(None, f"{tmp_path}/a.jpg")],
            [MediaFile(None, f"file://{tmp_path}/a.jpg")],
            [MediaFile(None, f"{site}/a.jpg")],
        ])  # fmt: skip
    assert opened == [[b"in the row", b"on disk"], [b"on disk"], [b"of a site"]]


@pytest.mark.parametrize(("name", "error", "why"), [
    ("missing.jpg", InvalidMedia, "does not exist"), ("large.jpg", InvalidMedia, r"images\.max_bytes"),
    ("folder", InvalidMedia, "is a folder"), ("../a.jpg", InvalidMedia, r"'\.\.'"),
    ("missing/a.jpg", InvalidMedia, "does not exist"), ("large.jpg/a.jpg", InvalidMedia, "does not exist"),
    ("a" * 300, InvalidMedia, "File name too long"), ("nul\0.jpg", InvalidMedia, "control characters"),
])  # fmt: skip
def test_file_that_cannot_be_read_is_its_row_s_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception], why: str
) -> None:
    monkeypatch.setattr(reader, "_RETRY_WAITS_SECONDS", ())
    (tmp_path / "large.jpg").write_bytes(b"x" * 101)
    (tmp_path / "folder").mkdir()
    good, bad = media_reader(images__sources=(str(tmp_path),), images__max_bytes=100).read(
        [[MediaFile(b"good")], [MediaFile(b"good"), MediaFile(None, f"{tmp_path}/{name}")]]
    )
    assert good == [b"good"]
    with pytest.raises(error, match=why):
        raise bad  # type: ignore[misc]


def test_file_is_below_a_source_when_all_links_are_followed(tmp_path: Path) -> None:
    """A source may be a link itself, and a link in it may lead elsewhere in it, or into another source."""
    for name in ("photos-v2", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_text(name)
    photos = tmp_path / "photos"
    photos.symlink_to(tmp_path / "photos-v2")
    (photos / "link.jpg").symlink_to("a.jpg")
    (photos / "other.jpg").symlink_to(tmp_path / "more" / "a.jpg")
    reader = media_reader(images__sources=(str(photos), str(tmp_path / "more")))
    rows = [[MediaFile(None, f"{photos}/{name}.jpg")] for name in ("a", "link", "other")]
    assert reader.read(rows) == [[b"photos-v2"], [b"photos-v2"], [b"more"]]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(("make", "why"), [
    (lambda path: path.symlink_to(path.parent.parent / "secret"), "leads to '.*/secret', which is below"),
    (lambda path: path.symlink_to("/dev/zero"), "leads to '/dev/zero', .* none of images.sources"),
    (lambda path: path.symlink_to("a.jpg"), "Too many levels of symbolic links"),
    (os.mkfifo, "is a pipe"), (make_socket, "is a socket"),
    (lambda path: path.symlink_to(path.parent), "is a folder"),
])  # fmt: skip
def test_what_is_no_file_of_a_source_is_never_opened(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    (tmp_path / "secret").write_text("password")
    (tmp_path / "p").mkdir()
    make(tmp_path / "p" / "a.jpg")
    (tmp_path / "p" / "good.jpg").write_bytes(b"good")
    names = ["a.jpg"] * 20 + ["good.jpg"]  # more than there are threads
    *bad, good = media_reader(images__sources=(str(tmp_path / "p"),)).read(
        [[MediaFile(None, f"{tmp_path}/p/{name}")] for name in names]
    )
    assert good == [b"good"]
    for error in bad:
        with pytest.raises(InvalidMedia, match=f"p/a.jpg' .*{why}"):
            raise error  # type: ignore[misc]


def test_device_is_never_opened() -> None:
    [bad] = media_reader(images__sources=("/dev",)).read([[MediaFile(None, "/dev/zero")]])
    with pytest.raises(InvalidMedia, match="'/dev/zero' is a device"):
        raise bad  # type: ignore[misc]


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_file_that_is_swapped_for_a_link_meanwhile_is_not_read(tmp_path: Path, swapped: str) -> None:
    """Whoever may write below a source may do so at any instant."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.jpg").write_bytes(b"secret")
    photos = tmp_path / "photos"
    (photos / "x").mkdir(parents=True)
    (photos / "x" / "a.jpg").write_bytes(b"photo")
    done = threading.Event()

    def swap() -> None:
        real = photos / "x" / "a.jpg" if swapped == "file" else photos / "x"
        other = tmp_path / "outside" / "a.jpg" if swapped == "file" else tmp_path / "outside"
        kept, link = photos / "kept", photos / "link"
        os.link(real, kept) if swapped == "file" else None
        while not done.is_set():
            os.symlink(other, link)
            if swapped == "file":
                os.replace(link, real)
                os.link(kept, link)
                os.replace(link, real)
            else:
                os.rename(real, kept)
                os.rename(link, real)
                os.remove(real)
                os.rename(kept, real)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        reader = media_reader(images__sources=(str(photos),))
        read = [reader.read([[MediaFile(None, f"{photos}/x/a.jpg")]])[0] for _ in range(300)]
    finally:
        done.set()
        thread.join()
    read += reader.read([[MediaFile(None, f"{photos}/x/a.jpg")]])  # however it went until then
    assert {str(one) for one in read if not isinstance(one, Exception)} == {"[b'photo']"}
    assert {type(one) for one in read if isinstance(one, Exception)} <= {InvalidMedia}


def test_file_in_a_row_over_the_limit_is_refused() -> None:
    [bad] = media_reader(images__max_bytes=3).read([[MediaFile(b"1234")]])
    with pytest.raises(InvalidMedia, match=r"the image has more than images\.max_bytes, 3 bytes"):
        raise bad  # type: ignore[misc]


def test_files_of_a_row_share_what_may_be_read_and_no_other_row_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST_FILE_BYTES", 10)
    asked: list[str] = []
    with http_server(lambda request: (asked.append(request.path), (200, b"1234"))[1]) as site:
        files = [MediaFile(None, f"{site}/{i}") for i in range(40)]
        many, few = media_reader(images__sources=(site, "127.0.0.1"), images__max_bytes=4).read(
            [files, files[:2]]
        )
    with pytest.raises(InvalidMedia, match="more than 10 bytes together"):
        raise many  # type: ignore[misc]
    assert few == [b"1234"] * 2
    assert len(asked) < 30  # as many as are read at once, at most


def test_site_that_fails_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_RETRY_WAITS_SECONDS", (0.01, 0.01))
    answers = iter([(503, b""), (429, b""), (200, b"here")])
    with http_server(lambda request: next(answers)) as site:
        opened = media_reader(images__sources=(site, "127.0.0.1")).read([[MediaFile(None, f"{site}/a")]])
    assert opened == [[b"here"]]


def test_one_bad_image_fails_its_row_and_no_other() -> None:
    bad = BAD_IMAGES["truncated"]
    good, both, other = media_reader(images__max_pixels=1000).decode(
        [[image_file()], [image_file(), bad], [image_file(8, 8), image_file(6, 4)]]
    )
    assert isinstance(good, list)
    assert isinstance(other, list)
    assert [m.shape for m in good] == [(27, 36, 3)]
    assert [m.shape for m in other] == [(8, 8, 3), (4, 6, 3)]
    assert isinstance(both, InvalidMedia)


def test_files_are_read_at_the_same_time() -> None:
    together = threading.Barrier(8, timeout=20)  # of which each answer waits for the others

    def respond(request: Any) -> tuple[int, Any]:
        together.wait()
        return 200, b"x"

    with http_server(respond) as site:
        rows = [[MediaFile(None, f"{site}/{i}")] for i in range(8)]
        assert media_reader(images__sources=(site, "127.0.0.1")).read(rows) == [[b"x"]] * 8


def test_media_travel_without_a_copy_of_their_pixels() -> None:
    rows = [[Medium("image", (1, 2, 3), b"abcdef")], [], [Medium("image", (1, 1, 3), b"xyz")] * 2]
    table = pa.table({"media": medium.to_array(rows)})
    arrived = medium.from_array(table.column("media"))
    assert [[(m.kind, m.shape, bytes(m.data)) for m in row] for row in arrived] == [
        [(m.kind, m.shape, m.data) for m in row] for row in rows
    ]
    before = pa.total_allocated_bytes()
    again = medium.from_array(table.column("media"))
    assert pa.total_allocated_bytes() == before
    assert [[m.size for m in row] for row in again] == [[6], [], [3, 3]]


def test_recordings_are_decoded_into_pieces_one_after_the_other() -> None:
    job = slice_job(
        task="transcribe", audio__column="call", audio__max_seconds=40, audio__max_bytes=2_000_000
    )
    of_calls = MediaReader(job)
    files = [[recording(31), recording(1)], [recording(41)], [recording(1), b"broken"]]
    contents = of_calls.read([[MediaFile(file) for file in row] for row in files])
    good, long, broken = of_calls.decode([row for row in contents if isinstance(row, list)])
    assert isinstance(good, list)
    assert [round(piece.shape[0] / 16_000) for piece in good] == [30, 1, 1]
    assert "longer than audio.max_seconds, 40 s" in str(long)
    assert isinstance(broken, InvalidMedia)
    [large] = of_calls.read([[MediaFile(b"x" * 2_000_001)]])
    assert str(large) == "the recording has more than audio.max_bytes, 2,000,000 bytes"
