from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from airflow_provider_raydatallm.processor.media.audio import SAMPLE_RATE, decode_audio
from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium, RowAllowances
from tests.support.recordings import BAD_RECORDINGS, announced_wav, recording

ANY = 1800.0


def samples(media: list[Medium]) -> np.ndarray:
    return np.concatenate([np.frombuffer(medium.data, np.int16) for medium in media])


@pytest.mark.parametrize(("kind", "codec", "rate", "channels"), [
    ("wav", "pcm_s16le", 16_000, 1), ("wav", "pcm_s16le", 44_100, 2), ("wav", "pcm_mulaw", 8_000, 1),
    ("flac", "flac", 48_000, 2), ("mp3", "libmp3lame", 44_100, 2), ("ogg", "libopus", 48_000, 1),
    ("mp4", "aac", 44_100, 2), ("adts", "aac", 22_050, 1), ("webm", "libopus", 48_000, 2),
    ("aiff", "pcm_s16be", 22_050, 1),
])  # fmt: skip
def test_formats_sound_the_same(kind: str, codec: str, rate: int, channels: int) -> None:
    [medium] = decode_audio(recording(kind=kind, codec=codec, rate=rate, channels=channels, seed=3), ANY)
    heard = samples([medium])
    assert (medium.kind, medium.shape, medium.size) == ("audio", heard.shape, 2 * len(heard))
    assert abs(len(heard) / SAMPLE_RATE - 2) < 0.1
    middle = heard[SAMPLE_RATE // 2 : SAMPLE_RATE * 3 // 2]
    assert np.abs(np.fft.rfft(middle)).argmax() == pytest.approx(350, abs=1)  # Hz
    assert np.sqrt(np.square(middle.astype(float)).mean()) == pytest.approx(0.3 * 0.707 * 32768, rel=0.05)


def test_long_recording_is_cut_where_it_is_silent_and_loses_nothing() -> None:
    pieces = decode_audio(recording(65, silent_at=29.4), ANY)
    lengths = [medium.shape[0] / SAMPLE_RATE for medium in pieces]
    assert lengths[0] == pytest.approx(29.5, abs=0.1)
    assert all(29 <= length <= 30 for length in lengths[:-1])
    assert sum(lengths) == 65
    as_flac = recording(65, kind="flac", codec="flac", silent_at=29.4)
    assert (samples(pieces) == samples(decode_audio(as_flac, ANY))).all()


def test_recording_that_is_too_long_is_decoded_no_further() -> None:
    with pytest.raises(InvalidMedia, match=r"longer than audio.max_seconds, 3 s"):
        decode_audio(recording(3.5), 3)
    assert decode_audio(recording(3), 3)


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_wav_of_a_stream_does_not_say_how_long_it_is(size: bytes) -> None:
    file = recording()
    place = file.index(b"data") + 4
    streamed = file[:place] + size + file[place + 4 :]
    assert (samples(decode_audio(streamed, ANY)) == samples(decode_audio(file, ANY))).all()


@pytest.mark.parametrize(("bad", "why"), [
    ("empty", "0 bytes"), ("text", "not a recording that can be read .*<html>"), ("truncated", "damaged"),
    ("no_sample", "no sample"), ("playlist", "not a recording"), ("list_of_files", "not a recording"),
    ("nan", "NaN or infinite"), ("picture", "not a recording"),
    ("unknown_codec", "not decoded"), ("slow", "longer than audio.max_seconds"),
])  # fmt: skip
def test_bad_file_is_refused_with_its_reason(bad: str, why: str) -> None:
    with pytest.raises(InvalidMedia, match=why):
        decode_audio(BAD_RECORDINGS[bad], ANY)


def test_small_file_of_a_long_recording_takes_no_memory() -> None:
    script = (
        "import re, pathlib; from tests.support.recordings import BAD_RECORDINGS\n"
        "from airflow_provider_raydatallm.processor.media.audio import decode_audio\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', status.read_text())[1]) >> 10\n"
        "before = peak()\n"
        "try: decode_audio(BAD_RECORDINGS['slow'], 1800)\n"
        "except ValueError: print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100  # MiB


@pytest.mark.parametrize(("rate", "channels"), [
    (0, 1), (768_001, 1), (1 << 30, 1), ((1 << 31) - 1, 1), ((1 << 32) - 1, 1), (16_000, 0), (16_000, 65),
    (16_000, 512), (16_000, 65_535),
])  # fmt: skip
def test_absurd_rates_and_channels_are_refused(rate: int, channels: int) -> None:
    with pytest.raises(InvalidMedia):
        decode_audio(announced_wav(rate, channels), ANY)


@pytest.mark.parametrize(("rate", "channels"), [(4000, 1), (8000, 2), (192_000, 8), (768_000, 1)])
def test_any_real_rate_is_decoded(rate: int, channels: int) -> None:
    assert decode_audio(announced_wav(rate, channels), ANY)


def test_recordings_of_a_row_share_what_is_kept() -> None:
    row = RowAllowances()
    row.media_bytes.take((1 << 29) - 100_000)
    assert decode_audio(recording(2), ANY, row)
    with pytest.raises(InvalidMedia, match="bytes when decoded together"):
        decode_audio(recording(2), ANY, row)


@pytest.mark.slow
def test_any_damage_is_invalid_media() -> None:
    generator = np.random.default_rng(1)
    for kind, codec in (("wav", "pcm_s16le"), ("flac", "flac"), ("mp3", "libmp3lame"), ("mp4", "aac")):
        file = recording(kind=kind, codec=codec)
        for _ in range(30):
            broken = bytearray(file)
            for place in generator.integers(0, min(len(file), 2000), 8):
                broken[place] = int(generator.integers(0, 256))
            try:
                decode_audio(bytes(broken), 100)
            except InvalidMedia:
                continue
