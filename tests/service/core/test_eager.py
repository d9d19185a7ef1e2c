from __future__ import annotations

import asyncio
from collections import deque

import pytest

from anytime_service.http.exchange import start
from models.present import present
from service.loops import LOOPS

pytestmark = pytest.mark.parametrize("loop", LOOPS)


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
    await asyncio.wait_for(task, 5)
    assert said == ["got", "done"]


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
