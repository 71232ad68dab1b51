from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.spec.media_sources import MediaSources

SOURCES = MediaSources([
    "s3://lake/photos/", "/mnt/photos", "https://cdn.example.com", "http://img.example.com:8080/public/",
])  # fmt: skip


@pytest.mark.parametrize("address", [
    "s3://lake/photos/a/b.jpg", "/mnt/photos/a.jpg", "https://cdn.example.com/a.jpg?size=3",
    "s3a://lake/photos/a.jpg", "file:///mnt//photos/a.jpg",
    "https://CDN.example.com:443/a", "http://img.example.com:8080/public/a.png",
])  # fmt: skip
def test_addresses_below_a_source_are_accepted(address: str) -> None:
    SOURCES.check(address)


def test_relative_address_is_refused_wherever_the_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"below none of images\.sources"):
        MediaSources([str(tmp_path)]).check("a.jpg")


@pytest.mark.parametrize("address", [
    "s3://lake/photos-of-others/a.jpg", "s3://lake/secret.jpg", "gs://lake/photos/a.jpg", "a.jpg", "",
    "/mnt/photosets/a.jpg", "/etc/passwd", "/mnt/photos/../secret", "file:///mnt/other/a.jpg",
    "data:image/png;base64,AA",
    "http://cdn.example.com/a.jpg", "https://cdn.example.com.evil.org/a.jpg",
    "https://cdn.example.com:8443/a",
    "https://cdn.example.com@evil.org/a.jpg", "https://evil.org/https://cdn.example.com/a.jpg",
    "https://evil.org\\@cdn.example.com/a.jpg", "http://img.example.com:8080/private/a.png",
    "http://img.example.com:8080/public/../private/a.png",
    "http://img.example.com:8080/public/%2e%2e/private/a.png", "https:///a.jpg", "https://[::1/a.jpg",
    "zip://a.jpg::s3://lake/photos/x.zip", "ftp://cdn.example.com/a.jpg",
])  # fmt: skip
def test_addresses_elsewhere_are_refused(address: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        SOURCES.check(address)


@pytest.mark.parametrize("path", [
    "%252e%252e/private", "%2e%2e/private", "..;/private", "..;x=1/private", "%5c..%5cprivate", "..\\private",
    "%2e%2e%5cprivate", "./private", "/private", "a//b", "%2fprivate", ";/private", "a%00b", "a%0d%0ab",
    "a\x00",
    "a\n", "%c0%ae%c0%ae/private", "%ff", "\uff0e\uff0e/private", "\u2025/private",
    "%EF%BC%8E%EF%BC%8E/private",
    "..\uff0fprivate", "..%20/private", "%2525252e%2e", "a%2541", "..%2fprivate", "%u002e%u002e\\private",
    "..",
])  # fmt: skip
@pytest.mark.parametrize("source", ["https://x.example/public", "https://x.example"])
def test_path_that_a_server_may_read_in_another_way_is_refused(source: str, path: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        MediaSources([source]).check(f"https://x.example/public/{path}")


@pytest.mark.parametrize("path", [
    "a%20b.jpg", "50%25.jpg", "caf%C3%A9/\u00e9.jpg", "a..b/c...jpg", "...", "x;v=1/y.jpg",
    "a.jpg?u=..//%252e", "b/",
    "", "a.jpg#..",
])  # fmt: skip
def test_ordinary_names_are_accepted(path: str) -> None:
    MediaSources(["https://x.example/public"]).check(f"https://x.example/public/{path}")


@pytest.mark.parametrize("address", [
    "s3://lake/photos/%2e%2e/secret", "s3://lake/photos/%252e%252e/secret", "/mnt/photos/\uff0e\uff0e/secret",
    "s3://lake/photos/%5c..%5csecret", "/mnt/photos/a\n.jpg", "/mnt/photos/\0",
])  # fmt: skip
def test_keys_and_paths_are_read_in_one_way_too(address: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        SOURCES.check(address)
    SOURCES.check("s3://lake/photos/day=2026-01-31%2000%3A00/100%25//a.jpg")


def test_without_sources_no_address_is_accepted() -> None:
    with pytest.raises(ValueError, match=r"below none of images\.sources"):
        MediaSources([]).check("/mnt/photos/a.jpg")


@pytest.mark.parametrize("address", [
    "127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "::1", "fe80::1",
    "fd00::1", "::ffff:127.0.0.1", "224.0.0.1", "::", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254", "64:ff9b::10.0.0.1", "64:ff9b:1::8.8.8.8", "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::1", "fec0::1", "ff02::1", "ff0e::1", "255.255.255.255", "192.0.2.1", "198.51.100.1",
    "203.0.113.1",
    "198.18.0.1", "192.0.0.8", "172.31.0.1", "240.0.0.1", "239.1.1.1", "192.88.99.1", "0.1.2.3",
    "2001:db8::1", "168.63.129.16",
    "3fff::1", "5f00::1", "100::1", "2001:20::1", "fe80::1%lo", "4000::1",
])  # fmt: skip
def test_sites_with_private_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="not public"):
        SOURCES.check_machine("cdn.example.com", address)


def test_listed_machines_and_public_ones_are_accepted() -> None:
    sources = MediaSources(["https://cdn.example.com", "10.1.0.0/16", "fd00::7"])
    for address in (
        "93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "10.1.2.3", "fd00::7",
        "64:ff9b::93.184.215.14", "::ffff:93.184.215.14", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3",
    ):  # fmt: skip
        sources.check_machine("cdn.example.com", address)
    with pytest.raises(ValueError, match="not public"):
        sources.check_machine("cdn.example.com", "10.2.0.1")


@pytest.mark.parametrize(
    "source", ["photos/", "cdn.example.com", "https://user:pw@x.com", "ftp://x.com/a", ""]
)
def test_a_source_that_cannot_be_one_is_named(source: str) -> None:
    with pytest.raises(ValueError, match=r"not a source|not accepted|not an address"):
        MediaSources([source])
