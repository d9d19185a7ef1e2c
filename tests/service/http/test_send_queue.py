from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest

from anytime_service.http.exchange import MAX_BYTES, Exchange, Reply, SendQueue, start
from anytime_service.keys import KeyRing, read_keys
from anytime_service.limits.memory import Account, Accounts
from models.present import present
from service.loops import LOOPS, run
from waiting import WAIT_S


class Reader:
    """A client that reads while `reads` is set, the messages that it received, and the queue of those to it."""

    def __init__(self, *, reads: bool = True, memory: Account | None = None) -> None:
        self.got: list[Any] = []
        self.error: Exception | None = None
        self.given_up = 0
        self.reads = asyncio.Event()
        if reads:
            self.reads.set()
        self.box = SendQueue(self._send, self._give_up, memory or Account())

    def put(self, text: str) -> None:
        self.box.put({"type": "websocket.send", "text": text}, len(text))

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if self.error is not None:
            raise self.error
        self.got.append(message["text"])

    def _give_up(self) -> None:
        self.given_up += 1


async def test_an_answer_that_no_body_delays_is_sent_however_long_the_body() -> None:
    sent, account = list[str](), Account()

    async def receive() -> Any:
        if exchange.ended_ms:
            exchange.reply(Reply(200, "text/plain", b""))
        exchange.ended_ms = 1.0
        return {"type": "http.request", "body": bytes(10), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    exchange = Exchange(receive, send, 1, account)
    await exchange.finish()
    assert (sent, account.bytes) == (["http.response.start", "http.response.body"], 0)


def test_messages_arrive_in_order_however_the_client_reads() -> None:
    async def main(seed: int) -> None:
        rng, reader = random.Random(seed), Reader()
        said = []
        for i in range(200):
            said.append(str(i))
            slow = reader.box.slow
            reader.put(str(i))
            assert slow or not reader.reads.is_set() or reader.got[-1] == str(i), "sent at once"
            if rng.random() < 0.3:
                (reader.reads.clear if reader.reads.is_set() else reader.reads.set)()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        reader.reads.set()
        await asyncio.wait_for(reader.box.flushed(), WAIT_S)
        assert (reader.got, reader.box.slow, reader.given_up) == (said, False, 0)

    for seed in range(20):
        run(main(seed))


async def test_the_queue_gives_up_once_on_a_client_that_does_not_read() -> None:
    reader = Reader(reads=False)
    for i in range(50):
        reader.put("x" * (MAX_BYTES // 10))
        assert reader.given_up == (i > 10)
    assert not reader.box._queue
    await asyncio.sleep(0)
    reader.reads.set()
    await asyncio.sleep(0.001)
    assert reader.got == []


async def test_a_slow_client_that_catches_up_has_its_full_limit_again() -> None:
    reader = Reader()
    for _ in range(5):
        reader.reads.clear()
        for _ in range(10):
            reader.put("x" * (MAX_BYTES // 10))
        reader.reads.set()
        await asyncio.wait_for(reader.box.flushed(), WAIT_S)
    assert (len(reader.got), reader.given_up) == (50, 0)


@pytest.mark.parametrize("slow", [False, True])
async def test_the_queue_gives_up_once_on_an_unreachable_client(slow: bool) -> None:
    reader = Reader(reads=not slow)
    reader.error = OSError("gone")
    for _ in range(3):
        reader.put("x")
    reader.reads.set()
    await asyncio.wait_for(reader.box.flushed(), WAIT_S)
    reader.put("x")
    assert (reader.given_up, reader.got) == (1, [])


async def test_a_closed_queue_sends_nothing_and_does_not_give_up() -> None:
    reader = Reader(reads=False)
    for text in "ab":
        reader.put(text)
    waiting = asyncio.ensure_future(reader.box.flushed())
    await asyncio.sleep(0)
    for _ in range(2):
        reader.box.close()
    reader.reads.set()
    reader.put("c")
    await asyncio.wait_for(waiting, WAIT_S)
    assert (reader.got, reader.given_up) == ([], 0)


async def test_unread_messages_are_counted_on_the_share_of_a_key_and_released_with_their_reader() -> None:
    keys, held = KeyRing(read_keys("ann-0123456789abcdef,bob-0123456789abcdef")), Account(8 * MAX_BYTES)
    account = Accounts(held, 0.25, keys).of_key(keys.current[0])
    readers = [Reader(reads=False, memory=account) for _ in range(4)]
    for reader in readers[:3]:
        reader.put("x")
        reader.put("x" * (MAX_BYTES - 1_000))
    assert account.bytes == held.bytes == 2 * (MAX_BYTES - 1_000)
    assert [reader.given_up for reader in readers] == [0, 0, 1, 0], "together they were too much for one key"
    readers[0].reads.set()
    await readers[0].box.flushed()
    assert account.bytes == MAX_BYTES - 1_000
    for reader in readers:
        reader.box.close()
    assert (account.bytes, held.bytes) == (0, 0)


# Sends that do not wait end at once.


every_loop = pytest.mark.parametrize("loop", LOOPS)


@every_loop
async def test_a_send_that_does_not_wait_ends_or_fails_on_the_spot(loop: str) -> None:
    said: list[int] = []

    async def send(error: Exception | None = None) -> None:
        said.append(1)
        if error is not None:
            raise error

    assert start(send()) is None
    with pytest.raises(OSError, match="gone"):
        start(send(OSError("gone")))
    assert said == [1, 1]


@every_loop
@pytest.mark.parametrize("turns", [0, 1])
async def test_a_send_that_waits_goes_on_in_a_task_also_for_what_is_there_before_its_turn(
    loop: str, turns: int
) -> None:
    event, future, said = asyncio.Event(), asyncio.get_running_loop().create_future(), []

    async def send() -> None:
        await event.wait()
        said.append(await future)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        said.append("done")

    task = present(start(send()))
    for happen in (event.set, lambda: future.set_result("got")):
        for _ in range(turns):
            await asyncio.sleep(0)
        happen()
    await asyncio.wait_for(task, 60)
    assert said == ["got", "done"]


@every_loop
async def test_an_error_after_waiting_is_the_tasks(loop: str) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send() -> None:
        try:
            await future
        except KeyError:
            await asyncio.sleep(0)
            raise OSError("gone") from None

    task = present(start(send()))
    await asyncio.sleep(0)
    future.set_exception(KeyError("x"))
    with pytest.raises(OSError, match="gone"):
        await task


@every_loop
@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelling_the_task_ends_the_send_and_its_clean_up_runs(loop: str, turns: int) -> None:
    event, ended = asyncio.Event(), []

    async def send() -> None:
        try:
            await event.wait()
        finally:
            ended.append(True)

    task = present(start(send()))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended, event._waiters) == ([True], deque())
