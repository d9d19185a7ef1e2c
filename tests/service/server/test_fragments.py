"""Long frames pass in fragments, and the messages stay the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from anytime_service.server.fragments import LEAST, PIECE, Fragments

LIMIT = 4 * PIECE
LENGTHS = (0, 1, 125, 126, 127, PIECE, PIECE + LEAST, PIECE + LEAST + 1, 2 * PIECE, 65_535, 65_536, LIMIT)


def stream(frames: Sequence[Frame]) -> bytes:
    return b"".join(frame.serialize(mask=True) for frame in frames)


def frames_of(pieces: Sequence[bytes]) -> list[Frame]:
    """Return the frames that the parser of websockets finds."""
    found = bytearray().join(pieces)

    def read(size: int):  # type: ignore[no-untyped-def]
        if len(found) < size:
            raise EOFError
        taken = bytes(found[:size])
        del found[:size]
        return taken
        yield

    frames = []
    while found:
        parser = Frame.parse(read, mask=True)
        try:
            next(parser)
        except StopIteration as end:
            frames.append(end.value)
    return frames


def messages(frames: Sequence[Frame]) -> list[tuple[Opcode, bytes]]:
    """Return messages and control frames, in the order in which they end."""
    found: list[tuple[Opcode, bytes]] = []
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


@pytest.mark.parametrize("seed", range(60))
def test_messages_are_the_same_however_the_stream_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    frames = random_frames(rng)
    data, splitter, pieces = stream(frames), Fragments(LIMIT), []
    at, most = 0, rng.choice([3, 100, 5000, 300_000])
    while at < len(data):
        size = rng.randint(1, most) if most > 3 or len(data) - at < 40 else rng.choice([1, 2, 3, 20_000])
        pieces += list(splitter.split(data[at : at + size]))
        at += size
        assert splitter.held <= PIECE + LEAST
    found = frames_of(pieces)
    assert splitter.held == 0
    assert all(pieces)
    assert messages(found) == messages(frames)
    assert all(len(frame.data) <= PIECE + LEAST for frame in found)
    assert splitter.added == len(found) - len(frames)


def test_a_short_frame_is_not_copied() -> None:
    data = Frame(Opcode.TEXT, b"x" * 1000).serialize(mask=True)
    assert [piece is data for piece in Fragments(LIMIT).split(data)] == [True]


def test_a_frame_beyond_the_limit_is_refused_by_its_head() -> None:
    head = Frame(Opcode.BINARY, bytes(LIMIT + 1)).serialize(mask=True)[:14]
    assert list(Fragments(LIMIT).split(head)) == [head]
    with pytest.raises(PayloadTooBig):
        next(Frame.parse(_reader(head), mask=True, max_size=LIMIT))


def test_fragments_of_one_message_count_together() -> None:
    """Two long frames of one message, each below the limit, exceed it together."""
    server = ServerProtocol(max_size=LIMIT)
    splitter = Fragments(LIMIT)
    server.receive_data(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    [request] = server.events_received()
    server.send_response(server.accept(request))  # type: ignore[arg-type]
    frames = [Frame(Opcode.BINARY, bytes(LIMIT), fin=False), Frame(Opcode.CONT, bytes(LIMIT))]
    for piece in splitter.split(stream(frames)):
        server.receive_data(piece)
    assert server.close_sent is not None
    assert server.close_sent.code == 1009


def _reader(data: bytes):  # type: ignore[no-untyped-def]
    stored = bytearray(data)

    def read(size: int):  # type: ignore[no-untyped-def]
        taken = bytes(stored[:size])
        del stored[:size]
        return taken
        yield

    return read
