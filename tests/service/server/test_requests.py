"""Heads and bodies of HTTP, without a socket: their limits of size, and the framing of bodies however it is cut."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime_service.errors import HeadTooLargeError, MalformedBodyError
from anytime_service.server.requests import MAX_CHUNKS, Body, Head
from models.present import present

MAX = 1_000
HEAD = b"POST /predict?rows=2 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"


def head_of(content: bytes) -> Head:
    head = Head()
    head.read(content, MAX)
    return head


def test_a_head_is_read_from_the_first_byte_in_any_part() -> None:
    for blank in (b"", b"\r\n", b"\n\r\n"):
        for size in range(len(HEAD)):
            head = head_of(blank + HEAD[:size])
            assert (head.counted, head.complete) == (size, False)
        head = head_of(blank + HEAD + b"5\r\nabcde")
        assert (head.complete, head.size, head.counted) == (True, len(blank + HEAD), len(HEAD))
        assert (head.method, head.url, head.keep_alive) == ("POST", b"/predict?rows=2", True)
        assert head.headers[-1] == (b"x", b"y")


@pytest.mark.parametrize("size", [MAX, MAX + 1])
def test_a_head_and_the_blank_lines_before_it_have_a_limit_each(size: int) -> None:
    head = HEAD.replace(b"y", b"y" * (size - len(HEAD) + 1))
    for content in (head, b"\r\n" * (MAX // 2) + head, b"\r" * size):
        with pytest.raises(HeadTooLargeError) if size > MAX else nullcontext():
            head_of(content)


def test_the_target_of_a_head_that_is_too_large_is_known() -> None:
    head = Head()
    with pytest.raises(HeadTooLargeError):
        head.read(b"\r\nPOST /v2/models/m/infer HTTP/1.1\r\nX: " + b"y" * MAX, MAX)
    assert head.url == b"/v2/models/m/infer", "the form of the error depends on it"


def chunked(parts: list[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    """Return a body in chunks, behind the line end of its head."""
    sizes = (b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return b"\r\n" + b"".join(sizes) + b"0\r\n" + trailers + b"\r\n"


def read_in(pieces: list[bytes], framing: int = 0) -> tuple[Body, bytes, bytes]:
    """Read a body in pieces; return it, its content, and the rest."""
    body, content, left = Body(None, framing, MAX), b"", b""
    for piece in pieces:
        left += piece
        size = 1
        while size and not body.complete:
            part, size = body.read(left)
            content, left = content + part, left[size:]
    return body, content, left


@given(
    st.lists(st.binary(max_size=300), max_size=6),
    st.lists(st.integers(1, 60), max_size=40),
    st.sampled_from([b"", b";a=b", b";"]),
    st.sampled_from([b"", b"X: y\r\n", b"X: y\r\nHost: elsewhere\r\n"]),
)
def test_a_body_in_chunks_is_the_same_however_it_is_cut(
    parts: list[bytes], sizes: list[int], extension: bytes, trailers: bytes
) -> None:
    data, pieces = chunked(parts, extension, trailers) + b"GET /", []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    body, content, left = read_in([*pieces, data])
    assert (body.complete, content) == (True, b"".join(parts))
    assert left == b"GET /", "the next request is untouched"


def test_many_chunks_are_read_some_at_a_time() -> None:
    body = Body(None, 0, MAX)
    content, size = body.read(chunked([b"x"] * (MAX_CHUNKS + 10)))
    assert (content, body.pieces, body.complete) == (b"x" * MAX_CHUNKS, MAX_CHUNKS, False)
    assert size < len(chunked([b"x"] * (MAX_CHUNKS + 1)))


@pytest.mark.parametrize(
    "data",
    [
        b"\r\nx\r\n",
        b"\r\n0x5\r\nabcde\r\n",
        b"\r\n-5\r\n",
        b"\r\n5 \r\nabcde\r\n",
        b"\r\n5;a=\0\r\n",
        b"\r\n5\nabcde",
        b"\r\n11111111111111111\r\n",
        b"\r\n5\r\nabcdefg\r\n",
        b"\r\n5\r\nabcde\n0\r\n\r\n",
        b"\r\n0\r\nno trailer\r\n\r\n",
        b"\r\n0\r\nX : y\r\n\r\n",
        b"\r\n;\r\n",
    ],
)
def test_invalid_framing_is_refused_at_once(data: bytes) -> None:
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))]):
        with pytest.raises(MalformedBodyError):
            read_in(pieces)


@pytest.mark.parametrize("framing", [b"\r\n5;%b\r\nabcde\r\n0\r\n\r\n", b"\r\n0\r\nX: %b\r\n\r\n", b"\r\n5;%b"])
def test_extensions_and_trailers_count_with_the_head(framing: bytes) -> None:
    for size, fits in ((MAX // 4, True), (MAX, False)):
        with nullcontext() if fits else pytest.raises(HeadTooLargeError):
            read_in([framing % (b"x" * size)], framing=MAX // 2)


def test_the_framing_of_a_body_counts_with_the_head_before_it() -> None:
    framing = b"\r\n5;%b\r\nabcde" % (b"x" * 200)
    assert present(head_of(HEAD).body(MAX)).read(framing)[0] == b"abcde"
    long = head_of(HEAD.replace(b"y", b"y" * (MAX - 200)))
    with pytest.raises(HeadTooLargeError):
        present(long.body(MAX)).read(framing)
