"""Sleep and wake mean what the worker contract says, and nothing else is touched."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from resilience_pipelines.workers.vllm_middleware import Message, Scope, WakeRestoresService


class FakeEngine:
    def __init__(self) -> None:
        self.calls: list[object] = []

    async def wake_up(self, tags: list[str]) -> None:
        self.calls.append(tuple(tags))

    async def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    async def collective_rpc(self, method: str) -> None:
        self.calls.append(method)


class Server:
    """An application behind the middleware, with a log of what reached it."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.reached: list[str] = []
        self.app = WakeRestoresService(self._application)

    async def _application(self, scope: Scope, receive: Any, send: Any) -> None:
        self.reached.append(scope.get("path", scope["type"]))

    def request(self, method: str, path: str, query: bytes = b"", kind: str = "http") -> list[Any]:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Scope = {
            "type": kind, "method": method, "path": path, "query_string": query,
            "app": SimpleNamespace(state=SimpleNamespace(engine_client=self.engine)),
        }  # fmt: skip
        asyncio.run(self.app(scope, receive, send))
        return sent


@pytest.fixture
def server() -> Server:
    return Server()


def test_after_level_2_the_weights_come_back_before_the_cache(server: Server) -> None:
    server.request("POST", "/sleep", b"level=2")
    sent = server.request("POST", "/wake_up")
    assert server.engine.calls == [("weights",), "reload_weights", ("kv_cache",)]
    assert sent[0]["status"] == 200
    assert server.reached == ["/sleep"]


@pytest.mark.parametrize("query", [b"", b"level=1", b"level=0&mode=wait"])
def test_other_levels_are_vllms_own_business(server: Server, query: bytes) -> None:
    server.request("POST", "/sleep", query)
    server.request("POST", "/wake_up")
    assert server.engine.calls == []
    assert server.reached == ["/sleep", "/wake_up"]


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_for_a_snapshot_answers_when_host_memory_was_given_back(
    server: Server, level: int
) -> None:
    sent = server.request("POST", "/sleep", f"level={level}&purpose=snapshot".encode())
    assert server.engine.calls == [("sleep", level), "release_host_memory"]
    assert sent[0]["status"] == 200
    assert server.reached == []
    server.request("POST", "/wake_up")
    assert ("reload_weights" in server.engine.calls) == (level == 2)


def test_a_sleep_for_another_purpose_is_an_ordinary_one(server: Server) -> None:
    server.request("POST", "/sleep", b"level=1&purpose=rest")
    assert server.reached == ["/sleep"]


def test_the_level_is_forgotten_once_it_was_undone(server: Server) -> None:
    server.request("POST", "/sleep", b"level=2")
    server.request("POST", "/wake_up")
    server.request("POST", "/wake_up")
    assert server.reached == ["/sleep", "/wake_up"]


def test_other_requests_pass(server: Server) -> None:
    server.request("POST", "/sleep", b"level=2")
    server.request("GET", "/wake_up")
    server.request("POST", "/v1/completions")
    server.request("", "", kind="lifespan")
    assert server.reached[1:] == ["/wake_up", "/v1/completions", ""]
    assert server.engine.calls == []
