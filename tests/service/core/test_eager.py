from __future__ import annotations

import asyncio

import pytest

from anytime_service.http.exchange import start
from service.loops import LOOPS

pytestmark = pytest.mark.parametrize("loop", LOOPS)


async def test_a_send_that_does_not_wait_has_ended_when_it_returns(loop: str) -> None:
    said: list[int] = []

    async def send() -> None:
        said.append(1)

    assert start(send()) is None
    assert said == [1]


async def test_a_send_that_fails_before_it_waits_fails_on_the_spot(loop: str) -> None:
    async def send() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        start(send())


async def test_a_send_that_waits_goes_on_in_a_task(loop: str) -> None:
    said: list[object] = []
    event, future = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def send() -> None:
        said.append("begun")
        await event.wait()
        said.append(await future)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        said.append("done")

    task = start(send())
    assert task is not None
    assert said == ["begun"]
    await asyncio.sleep(0)
    event.set()
    await asyncio.sleep(0)
    future.set_result("got")
    await asyncio.wait_for(task, 5)
    assert said == ["begun", "got", "done"]


async def test_what_is_waited_for_may_be_there_before_the_task_has_its_turn(loop: str) -> None:
    event, said = asyncio.Event(), []

    async def send() -> None:
        await event.wait()
        said.append(1)

    task = start(send())
    event.set()
    assert task is not None
    await asyncio.wait_for(task, 5)
    assert said == [1]


async def test_an_error_after_waiting_is_the_tasks(loop: str) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caught: list[str] = []

    async def send() -> None:
        try:
            await future
        except KeyError:
            caught.append("inside")
            await asyncio.sleep(0)
            raise OSError("gone") from None

    task = start(send())
    assert task is not None
    await asyncio.sleep(0)
    future.set_exception(KeyError("x"))
    with pytest.raises(OSError, match="gone"):
        await task
    assert caught == ["inside"]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelling_the_task_ends_the_send_and_its_clean_up_runs(loop: str, turns: int) -> None:
    event, ended = asyncio.Event(), []

    async def send() -> None:
        try:
            await event.wait()
        finally:
            ended.append(True)

    task = start(send())
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert not event._waiters


async def test_a_send_may_outlast_a_cancellation(loop: str) -> None:
    async def send() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    task = start(send())
    assert task is not None
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(task, 5)
