"""Audio files, good and bad, as tables hold them."""

from __future__ import annotations

import io
import struct

import av
import numpy as np


def recording(
    seconds: float = 2.0, *, kind: str = "wav", codec: str = "pcm_s16le", rate: int = 16_000,
    channels: int = 1, seed: int = 0, silent_at: float | None = None,
) -> bytes:  # fmt: skip
    """A tone of its own in some noise.

    :param silent_at: second at which a fifth of a second is silent.
    """
    generator = np.random.default_rng(seed)
    times = np.arange(int(rate * seconds)) / rate
    sound = 0.3 * np.sin(2 * np.pi * (200 + 50 * seed) * times) + 0.02 * generator.normal(size=len(times))
    if silent_at is not None:
        sound[int(silent_at * rate) : int((silent_at + 0.2) * rate)] = 0
    samples = np.repeat((sound * (1 << 15)).clip(-(1 << 15), (1 << 15) - 1).astype(np.int16), channels)
    layout = {1: "mono", 2: "stereo"}[channels]
    frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout=layout)
    frame.sample_rate = rate
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        for packets in (stream.encode(frame), stream.encode(None)):
            container.mux(packets)
    return file.getvalue()


def slow_recording(seconds: int) -> bytes:
    """One packet with a sample a second."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        packet = av.Packet(bytes(seconds))
        packet.stream, packet.pts, packet.dts = container.add_stream("pcm_u8", rate=1, layout="mono"), 0, 0
        container.mux(packet)
    return file.getvalue()


def announced_wav(rate: int, channels: int) -> bytes:
    """A WAV that says it has so many channels of so many samples a second, and holds a hundredth of one."""
    data = bytes(max(1, rate // 100) * channels if rate < 1 << 20 else 1 << 20)
    header = struct.pack(
        "<4sI8sIHHIIHH", b"RIFF", 36 + len(data), b"WAVEfmt ", 16, 1, channels, rate,
        min(rate * channels, (1 << 32) - 1), channels, 8,
    )  # fmt: skip
    return header + struct.pack("<4sI", b"data", len(data)) + data


def float_wav(samples: np.ndarray) -> bytes:
    data = samples.astype("<f4").tobytes()
    header = struct.pack(
        "<4sI8sIHHIIHH", b"RIFF", 36 + len(data), b"WAVEfmt ", 16, 3, 1, 16_000, 64_000, 4, 32
    )
    return header + struct.pack("<4sI", b"data", len(data)) + data


#: Files that no model can hear, by what is wrong with them.
BAD_RECORDINGS = {
    "empty": b"",
    "text": b"<html>not found</html>" * 10,
    "truncated": recording(kind="flac", codec="flac")[:9000],
    "no_sample": recording().partition(b"data")[0] + b"data\0\0\0\0",
    "playlist": b"#EXTM3U\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "list_of_files": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "nan": float_wav(np.full(16_000, np.nan)),
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(1000),
    "unknown_codec": recording().replace(b"fmt \x10\0\0\0\1\0", b"fmt \x10\0\0\0\xee\xee"),
    "slow": slow_recording(20_000),
}
