"""An exchange of a request and its response, in any order, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anytime_service.errors import BodyTooLargeError
from anytime_service.http.exchange import Exchange, Reply
from waiting import WAIT_S

OK = Reply(200, "text/plain", b"answer")
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/plain"), (b"content-length", b"6")],
}


class Client:
    """A client: it stalls at the end of `messages`, and reads while `reads` is set."""

    def __init__(self, *chunks: bytes | None, ended: bool = True) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for i, chunk in enumerate(chunks):
            self.says(chunk, more=i < len(chunks) - 1 or not ended)
        self.got: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()

    def says(self, chunk: bytes | None, *, more: bool = True) -> None:
        if chunk is None:
            self.messages.put_nowait({"type": "http.disconnect"})
        else:
            self.messages.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.got.append(message)

    def exchange(self, limit: int = 100, **options: float) -> Exchange:
        return Exchange(self.messages.get, self.send, limit, **options)  # type: ignore[arg-type]


def body(more: bool, content: bytes = b"answer") -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def test_a_body_that_has_ended_is_answered_at_once_and_completely() -> None:
    client = Client(b"ab", b"", b"cd")
    here = client.exchange()
    assert [chunk async for chunk in here.body()] == [b"ab", b"cd"]
    assert here.ended
    here.reply(OK)
    here.reply(OK)
    assert client.got == [START, body(more=False)], "only the first one is sent"
    await here.finish()
    assert len(client.got) == 2


async def test_the_whole_body_is_its_chunks_together() -> None:
    for chunks in ([b""], [b"abc"], [b"a", b"", b"bc"]):
        assert await Client(*chunks).exchange().read_all() == b"".join(chunks)


async def test_an_early_answer_is_sent_at_once_and_completed_when_the_body_ends() -> None:
    client = Client(b"ab", ended=False)
    here = client.exchange()
    chunks = here.body()
    assert await anext(chunks) == b"ab"
    asyncio.get_running_loop().call_soon(here.reply, OK)
    asyncio.get_running_loop().call_later(0.01, client.says, b"late")
    assert [chunk async for chunk in chunks] == [], "nothing counts after the answer"
    assert client.got == [START, body(more=True)]
    client.messages.put_nowait({"type": "http.request", "body": b"the end", "more_body": False})
    await asyncio.wait_for(here.finish(), WAIT_S)
    assert client.got[2:] == [{"type": "http.response.body", "body": b""}]


async def test_a_response_to_an_endless_body_stays_incomplete_so_that_the_server_closes() -> None:
    client = Client()
    here = client.exchange(linger_s=0.05)
    here.reply(OK)
    await here.finish()
    assert client.got == [START, body(more=True)]
    await asyncio.sleep(0)  # no cancellation is pending


async def test_a_body_that_continues_after_the_answer_is_cut_at_the_limit() -> None:
    client = Client(*[b"x" * 60] * 4, ended=False)
    here = client.exchange(limit=100)
    here.reply(OK)
    await asyncio.wait_for(here.finish(), WAIT_S)
    assert client.messages.qsize() == 2
    assert client.got == [START, body(more=True)]


@pytest.mark.parametrize("read", ["body", "whole"])
async def test_a_body_above_the_limit_is_an_error(read: str) -> None:
    here = Client(b"x" * 60, b"x" * 41, ended=False).exchange(limit=100)
    with pytest.raises(BodyTooLargeError, match="more than 100 bytes"):
        _ = await here.read_all() if read == "whole" else [chunk async for chunk in here.body()]


async def test_nothing_is_sent_to_a_disconnected_client() -> None:
    client = Client(b"ab", None)
    here = client.exchange()
    assert [chunk async for chunk in here.body()] == [b"ab"]
    assert (here.gone, here.ended) == (True, False)
    here.reply(OK)
    await asyncio.wait_for(here.finish(), WAIT_S)
    assert client.got == []


async def test_finish_waits_for_an_answer_from_a_timer() -> None:
    client = Client(b"ab")
    here = client.exchange()
    assert await here.read_all() == b"ab"

    def answer() -> None:
        here.reply(OK)
        client.says(None)  # as a server does when the response is complete

    asyncio.get_running_loop().call_later(0.01, answer)
    await asyncio.wait_for(here.finish(), WAIT_S)
    assert client.got == [START, body(more=False)]
    assert not here.gone


async def test_a_client_that_reads_slowly_receives_the_complete_answer_in_order() -> None:
    client = Client(ended=False)
    client.reads.clear()
    here = client.exchange()
    here.reply(OK)
    assert client.got == []
    finishing = asyncio.ensure_future(here.finish())
    client.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    await asyncio.sleep(0.01)
    assert not finishing.done()
    client.reads.set()
    await asyncio.wait_for(finishing, WAIT_S)
    assert client.got == [START, body(more=True), {"type": "http.response.body", "body": b""}]


async def test_an_answer_without_content_has_no_content_type() -> None:
    client = Client(b"")
    here = client.exchange()
    await here.read_all()
    here.reply(Reply(204, "", b"", ((b"x-more", b"1"),), close=True))
    assert client.got[0]["headers"] == [(b"x-more", b"1"), (b"connection", b"close")]


async def test_a_cancellation_from_outside_is_not_suppressed() -> None:
    client = Client()

    async def serve() -> None:
        here = client.exchange()
        here.reply(OK)
        await here.finish()

    serving = asyncio.ensure_future(serve())
    await asyncio.sleep(0.01)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
