"""An ASGI middleware that vLLM loads, so that sleep and wake mean what the worker contract says.

A wake restores service: after a sleep of level 2 vLLM's `/wake_up` leaves the weights empty, since
its caller is meant to load new ones, so this reloads them from the model's files in between. A
sleep with `purpose=snapshot` also gives back host memory (`vllm_extension`): the image is smaller
and the wake a little slower. Everything else passes through untouched.

What belongs here: these differences between vLLM and the worker contract. What does not: anything
that imports vLLM; the engine is reached through the application that calls us.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from resilience_pipelines.workers.vllm_extension import trim_heap

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LEVEL_WITHOUT_WEIGHTS = 2


class WakeRestoresService:
    """Remembers the level of the last sleep and completes the wake after level 2."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._level = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
        elif scope["path"] == "/sleep":
            query = parse_qs(scope.get("query_string", b"").decode())
            self._level = int(query.get("level", ["1"])[0])
            if query.get("purpose") == ["snapshot"]:
                await self._sleep_small(scope["app"].state.engine_client)
                await _answer_ok(send)
            else:
                await self._app(scope, receive, send)
        elif scope["path"] == "/wake_up" and self._level == LEVEL_WITHOUT_WEIGHTS:
            await self._wake_with_weights(scope["app"].state.engine_client)
            self._level = 0
            await _answer_ok(send)
        else:
            await self._app(scope, receive, send)

    async def _sleep_small(self, engine: Any) -> None:
        await engine.sleep(self._level)
        await engine.collective_rpc("release_host_memory")
        trim_heap()

    @staticmethod
    async def _wake_with_weights(engine: Any) -> None:
        # Weights first: memory for them is taken before the KV cache fills the device.
        await engine.wake_up(["weights"])
        await engine.collective_rpc("reload_weights")
        await engine.wake_up(["kv_cache"])


async def _answer_ok(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})
