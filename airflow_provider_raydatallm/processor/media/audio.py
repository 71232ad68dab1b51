"""Checks an audio file, decodes it and cuts it into pieces as long as a model hears at once.

Only readers and decoders of common sound formats are tried, and none opens another file: FFmpeg, which PyAV
brings, knows playlists and addresses, too. A recording that is longer than allowed is decoded no further.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain

import numpy as np

from airflow_provider_raydatallm.processor.media.medium import InvalidMedia, Medium, RowAllowances

#: Of all speech models: a second has so many samples.
SAMPLE_RATE = 16_000
#: What Whisper hears at once; a longer recording is cut where it is quietest in the last second of these.
_PIECE = 30 * SAMPLE_RATE
_SEARCHED = SAMPLE_RATE
#: A filter that resamples grows with what it starts from.
_MOST_SAMPLE_RATE = 768_000
_MOST_CHANNELS = 64
_QUIET = SAMPLE_RATE // 10
_FORMATS = "wav,mp3,flac,ogg,aac,aiff,amr,mov,matroska"
_CODECS = frozenset({
    "aac", "alac", "amrnb", "amrwb", "flac", "mp3", "mp3float", "opus", "vorbis", "pcm_alaw", "pcm_f32le",
    "pcm_f64le", "pcm_mulaw", "pcm_s16be", "pcm_s16le", "pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le",
    "pcm_s8", "pcm_u8",
})  # fmt: skip
#: Whose samples may be NaN or infinite. Decoders of other codecs make neither.
_OF_FLOATS = frozenset({"pcm_f32le", "pcm_f64le"})


def decode_audio(data: bytes, max_seconds: float, row: RowAllowances | None = None) -> list[Medium]:
    """Returns the pieces of a recording, of one channel with `SAMPLE_RATE` 16-bit samples a second.

    :raises InvalidMedia: naming what is wrong with it.
    """
    import av

    if not data:
        raise InvalidMedia("the recording is empty: 0 bytes")
    try:
        samples = _decode(data, max_seconds, row or RowAllowances())
    except InvalidMedia:
        raise
    except (av.error.InvalidDataError, av.error.ArgumentError, av.error.EOFError):
        raise InvalidMedia(
            f"the file is damaged, or not a recording that can be read ({_FORMATS}): it begins with "
            f"{data[:16]!r}"
        ) from None
    except Exception as e:  # readers raise any type
        raise InvalidMedia(f"the recording cannot be decoded: {e or type(e).__name__}") from e
    return [Medium("audio", piece.shape, piece.tobytes()) for piece in _cut(samples)]


def _decode(data: bytes, max_seconds: float, row: RowAllowances) -> np.ndarray:
    import av

    options = {"format_whitelist": _FORMATS, "codec_whitelist": ",".join(_CODECS), "protocol_whitelist": ""}
    with av.open(io.BytesIO(data), "r", options=options, metadata_errors="ignore") as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None:
            raise InvalidMedia("the file holds no sound")
        codec = getattr(stream.codec_context, "name", None)  # None: FFmpeg does not know it
        if codec not in _CODECS:
            sound = "of an unknown kind" if codec is None else repr(codec)
            raise InvalidMedia(f"its sound is {sound}, which is not decoded")
        resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
        pieces, count = [], 0
        for frame in chain(container.decode(stream), [None]):
            if frame is not None:
                # Before it is resampled: a few bytes at a sample a second are hours.
                resampled_samples = frame.samples / frame.sample_rate * SAMPLE_RATE
                if count + resampled_samples > max_seconds * SAMPLE_RATE:
                    raise InvalidMedia(f"the recording is longer than audio.max_seconds, {max_seconds:g} s")
                if frame.sample_rate > _MOST_SAMPLE_RATE or len(frame.layout.channels) > _MOST_CHANNELS:
                    raise InvalidMedia(
                        f"the recording has {len(frame.layout.channels):,} channels of {frame.sample_rate:,} "
                        f"samples a second: at most {_MOST_CHANNELS} of {_MOST_SAMPLE_RATE:,} are decoded"
                    )
                row.media_bytes.take(int(resampled_samples) * 2)
                if codec in _OF_FLOATS and not np.isfinite(frame.to_ndarray()).all():
                    raise InvalidMedia("the recording has samples that are NaN or infinite")
            for resampled in resampler.resample(frame):
                pieces.append(resampled.to_ndarray()[0])
                count += len(pieces[-1])
        if not count:
            raise InvalidMedia("the recording is empty: it has no sample")
        return np.concatenate(pieces)


def _cut(samples: np.ndarray) -> Iterator[np.ndarray]:
    start = 0
    while len(samples) - start > _PIECE:
        last_second = samples[start + _PIECE - _SEARCHED : start + _PIECE].astype(np.float32)
        loudness = np.square(last_second).reshape(-1, _QUIET).sum(axis=1)
        end = start + _PIECE - _SEARCHED + int(loudness.argmin()) * _QUIET + _QUIET // 2
        yield samples[start:end]
        start = end
    yield samples[start:]
