from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from anytime_service.http.exchange import MAX_BYTES, SendQueue
from anytime_service.limits.memory import MemoryBudget
from service.loops import run


class Reader:
    """A client that reads while `reads` is set, and the messages that it received."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.error: Exception | None = None
        self.given_up = 0

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        if self.error is not None:
            raise self.error
        self.got.append(message["text"])

    def give_up(self) -> None:
        self.given_up += 1


def put(box: SendQueue, text: str) -> None:
    box.put({"type": "websocket.send", "text": text}, len(text))


def test_messages_to_a_client_that_reads_are_sent_at_once() -> None:
    async def main() -> None:
        reader = Reader()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        for text in "abc":
            put(box, text)
            assert reader.got[-1] == text
            assert not box.slow
        await box.flushed()

    run(main())


def test_messages_arrive_in_order_however_the_client_reads() -> None:
    async def main(seed: int) -> None:
        rng, reader = random.Random(seed), Reader()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        said = []
        for i in range(200):
            said.append(str(i))
            put(box, str(i))
            if rng.random() < 0.3:
                (reader.reads.clear if reader.reads.is_set() else reader.reads.set)()
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        reader.reads.set()
        await asyncio.wait_for(box.flushed(), 5)
        assert reader.got == said
        assert not box.slow
        assert not reader.given_up

    for seed in range(20):
        run(main(seed))


def test_the_queue_gives_up_once_on_a_client_that_does_not_read() -> None:

    async def main() -> None:
        reader = Reader()
        reader.reads.clear()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        for i in range(50):
            put(box, "x" * (MAX_BYTES // 10))
            assert reader.given_up == (i > 10)
        assert not box._queue
        await asyncio.sleep(0)
        reader.reads.set()
        await asyncio.sleep(0.001)
        assert reader.got == []

    run(main())


def test_a_slow_client_that_catches_up_has_its_full_limit_again() -> None:

    async def main() -> None:
        reader = Reader()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        for _ in range(5):
            reader.reads.clear()
            for _ in range(10):
                put(box, "x" * (MAX_BYTES // 10))
            reader.reads.set()
            await asyncio.wait_for(box.flushed(), 5)
        assert (len(reader.got), reader.given_up) == (50, 0)

    run(main())


@pytest.mark.parametrize("slow", [False, True])
def test_the_queue_gives_up_once_on_an_unreachable_client(slow: bool) -> None:
    async def main() -> None:
        reader = Reader()
        reader.error = OSError("gone")
        if slow:
            reader.reads.clear()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        for _ in range(3):
            put(box, "x")
        reader.reads.set()
        await asyncio.wait_for(box.flushed(), 5)
        put(box, "x")
        assert (reader.given_up, reader.got) == (1, [])

    run(main())


def test_a_closed_queue_sends_nothing_and_does_not_give_up() -> None:
    async def main() -> None:
        reader = Reader()
        reader.reads.clear()
        box = SendQueue(reader.send, reader.give_up, MemoryBudget())
        put(box, "a")
        put(box, "b")
        waiting = asyncio.ensure_future(box.flushed())
        await asyncio.sleep(0)
        box.close()
        box.close()
        reader.reads.set()
        put(box, "c")
        await asyncio.wait_for(waiting, 5)
        assert (reader.got, reader.given_up) == ([], 0)

    run(main())
