"""Frames of a client are read in any pieces, as the parser of websockets reads them whole."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode

from anytime_service.server.frames import FrameReader, close_frame, head_of, unmasked

LIMIT = 4 * 65_536
LENGTHS = (0, 1, 125, 126, 127, 255, 256, 257, 32_768, 65_535, 65_536, LIMIT // 8)


def random_frames(rng: random.Random) -> list[Frame]:
    frames, inside = [], False
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.3:
            frames.append(Frame(rng.choice([Opcode.PING, Opcode.PONG]), rng.randbytes(rng.randint(0, 125))))
            continue
        fin = rng.random() < 0.7
        opcode = Opcode.CONT if inside else rng.choice([Opcode.TEXT, Opcode.BINARY])
        frames.append(Frame(opcode, rng.randbytes(rng.choice(LENGTHS)), fin=fin))
        inside = not fin
    return frames


def messages(frames: Sequence[Frame]) -> list[tuple[int, bytes]]:
    """Return messages and control frames, in the order in which they end."""
    found: list[tuple[int, bytes]] = []
    parts, kind = b"", Opcode.CONT
    for frame in frames:
        if frame.opcode in (Opcode.PING, Opcode.PONG):
            found.append((frame.opcode, bytes(frame.data)))
            continue
        kind = frame.opcode if frame.opcode is not Opcode.CONT else kind
        parts += bytes(frame.data)
        if frame.fin:
            found.append((kind, parts))
            parts = b""
    return found


def read_all(reader: FrameReader, pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Read a stream in pieces; what a piece leaves unread is read with the next."""
    found, left = [], b""
    for piece in pieces:
        data, at, before = left + piece, 0, -1
        while at > before:
            before = at
            at, opcode, content = reader.read(data, at)
            if content is not None:
                found.append((opcode, bytes(content)))
        left = data[at:]
        assert len(left) < 140, "an incomplete head or control frame"
    assert not left
    return found


@pytest.mark.parametrize("seed", range(60))
def test_messages_are_the_same_however_the_stream_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    frames = random_frames(rng)
    data = b"".join(frame.serialize(mask=True) for frame in frames)
    most = rng.choice([50, 5_000, 300_000]) if len(data) > 3_000 else rng.choice([1, 3, 100])
    pieces: list[bytes] = []
    while data:
        size = rng.randint(1, most)
        pieces.append(data[:size])
        data = data[size:]
    assert read_all(FrameReader(8 * LIMIT), pieces) == messages(frames)


def test_a_control_frame_is_no_part_of_the_size_of_a_message() -> None:
    parts = [Frame(Opcode.TEXT, bytes(990), fin=False), Frame(Opcode.PING, bytes(20)), Frame(Opcode.CONT, bytes(10))]
    assert read_all(FrameReader(1_000), [b"".join(part.serialize(mask=True) for part in parts)]) == messages(parts)


def framed(opcode: int, content: bytes = b"", *, fin: bool = True, bits: int = 0, mask: int = 0x80) -> bytes:
    return bytes((fin << 7 | bits << 4 | opcode, mask | len(content))) + bytes(4) + content


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (framed(1, b"{}", mask=0), ProtocolError),
        (framed(1, b"{}", bits=4), ProtocolError),
        (framed(3), ProtocolError),
        (framed(11), ProtocolError),
        (framed(0), ProtocolError),
        (framed(1, fin=False) + framed(2), ProtocolError),
        (framed(9, fin=False), ProtocolError),
        (bytes((0x89, 0xFE)), ProtocolError),
        pytest.param(Frame(Opcode.BINARY, bytes(LIMIT + 1)).serialize(mask=True)[:14], OverflowError, id="long"),
        (bytes((0x82, 0xFF)) + b"\xff" * 8 + bytes(4), OverflowError),
        pytest.param(
            Frame(Opcode.BINARY, bytes(LIMIT), fin=False).serialize(mask=True) + framed(0, b"x"),
            OverflowError,
            id="long in parts",
        ),
    ],
)
def test_an_invalid_frame_is_another_error_than_one_that_is_too_long(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_all(FrameReader(LIMIT), [data])


@pytest.mark.parametrize("size", LENGTHS)
def test_frames_of_the_server_and_masks_are_those_of_websockets(size: int) -> None:
    content = random.Random(size).randbytes(size)
    assert head_of(2, size) + content == Frame(Opcode.BINARY, content).serialize(mask=False)
    masked = Frame(Opcode.BINARY, content).serialize(mask=True)
    start = len(head_of(2, size))
    assert unmasked(masked[start + 4 :], masked[start : start + 4]) == content
    assert close_frame(1000, "é" * size)[2:4] == (1000).to_bytes(2, "big")
    assert len(close_frame(1000, "é" * size)) <= 127
