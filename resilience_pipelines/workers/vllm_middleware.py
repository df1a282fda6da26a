"""An ASGI middleware that vLLM loads, so that waking from any sleep level restores service.

vLLM's `/wake_up` after a sleep of level 2 leaves the weights empty: its caller is meant to load new
ones. The worker contract says that a wake undoes a sleep, so this reloads the weights from the
model's files in between. Everything else passes through untouched.

What belongs here: this one difference between vLLM and the worker contract. What does not: anything
that imports vLLM; the engine is reached through the application that calls us.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

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
            await self._app(scope, receive, send)
        elif scope["path"] == "/wake_up" and self._level == LEVEL_WITHOUT_WEIGHTS:
            await self._wake_with_weights(scope["app"].state.engine_client)
            self._level = 0
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, send)

    @staticmethod
    async def _wake_with_weights(engine: Any) -> None:
        # Weights first: memory for them is taken before the KV cache fills the device.
        await engine.wake_up(["weights"])
        await engine.collective_rpc("reload_weights")
        await engine.wake_up(["kv_cache"])
