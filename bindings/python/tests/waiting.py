"""What the tests of all that tasks may wait for have in common."""

from __future__ import annotations

import asyncio
import os
import threading
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import takt

PATIENCE = 60.0


async def waits_end(test: unittest.TestCase, part: Any, receive: Callable[[], Awaitable[object]]) -> None:
    """Waits of tasks for `part`, to which nothing comes, end when it is woken or closed; it is closed then."""
    tasks = [asyncio.ensure_future(receive()) for _ in range(2)]
    await asyncio.sleep(0)  # Both wait.
    threading.Thread(target=part.wake).start()
    ended, waiting = await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    test.assertEqual((len(ended), len(waiting)), (1, 1))
    with test.assertRaises(takt.Interrupted):
        ended.pop().result()
    part.wake()
    with test.assertRaises(takt.Interrupted):
        await asyncio.wait_for(waiting.pop(), PATIENCE)
    part.wake()  # Before a task waits.
    with test.assertRaises(takt.Interrupted):
        await asyncio.wait_for(receive(), PATIENCE)

    tasks = [asyncio.ensure_future(receive()) for _ in range(2)]
    await asyncio.sleep(0)
    descriptor = part.fileno()
    part.close()
    os.fstat(descriptor)  # The loop waits for it: it is not another one's yet.
    tasks[0].cancel()
    with test.assertRaises(asyncio.CancelledError):
        await tasks[0]
    with test.assertRaises(takt.Closed):
        await asyncio.wait_for(tasks[1], PATIENCE)
    test.assertFalse(asyncio.get_running_loop().remove_reader(descriptor))
