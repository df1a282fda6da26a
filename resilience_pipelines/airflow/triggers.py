"""Triggers: waiting for Dagster without holding a worker slot.

What belongs here: what the triggerer runs. What does not: requests to Dagster (`client`), and what
comes of an event (`operators`, `sensors`).

Requests run in threads: each has a time-out, and the triggerer's event loop never waits for one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from resilience_pipelines.airflow.client import Dagster, DagsterError, endpoint_of

CANCEL_DEADLINE_S = 25.0
"""For a run to end once it was cancelled; the triggerer allows 30 s for `on_kill`."""


async def connect(conn_id: str) -> Dagster:
    """A client of the webserver that a connection names."""
    return Dagster(endpoint_of(await BaseHook.aget_connection(conn_id)))


class DagsterRunTrigger(BaseTrigger):
    """Waits for a run to end, copies its messages to the task's log, and cancels it when killed.

    Args:
        deadline: seconds since the epoch after which the run is cancelled.
    """

    def __init__(
        self, run_id: str, dagster_conn_id: str, deadline: float, poll_interval_s: float
    ) -> None:
        super().__init__()
        self.run_id = run_id
        self.dagster_conn_id = dagster_conn_id
        self.deadline = deadline
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger as it is stored."""
        return f"{__name__}.DagsterRunTrigger", {
            "run_id": self.run_id,
            "dagster_conn_id": self.dagster_conn_id,
            "deadline": self.deadline,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once: when the run has ended, was out of time, or can't be watched."""
        cursor: str | None = None
        try:
            dagster = await connect(self.dagster_conn_id)
            while True:
                found = await asyncio.to_thread(dagster.poll, self.run_id, cursor)
                cursor = found.cursor
                for message in found.messages:
                    self.log.info("%s", message)
                if found.finished:
                    yield TriggerEvent({"run_id": self.run_id, "status": found.status})
                    return
                if time.time() > self.deadline:
                    status = await asyncio.to_thread(
                        dagster.terminate, self.run_id, CANCEL_DEADLINE_S
                    )
                    yield TriggerEvent({"run_id": self.run_id, "status": status, "late": True})
                    return
                if not found.more:
                    await asyncio.sleep(self.poll_interval_s)
        except DagsterError as error:
            # The task knows what to do with a run that it can't see: `execute_complete`.
            yield TriggerEvent({"run_id": self.run_id, "status": None, "error": str(error)})

    async def on_kill(self) -> None:
        """Cancel the run, with its job, when somebody ends or clears the waiting task."""
        dagster = await connect(self.dagster_conn_id)
        status = await asyncio.to_thread(dagster.terminate, self.run_id, CANCEL_DEADLINE_S)
        self.log.info("The task was ended: run %s is %s", self.run_id, status)


class UpgradeVerdictTrigger(BaseTrigger):
    """Waits for a verdict on an upgrade to a stack that is newer than a moment.

    Args:
        since: seconds since the epoch.
    """

    def __init__(
        self, stack: str | None, since: float, dagster_conn_id: str, poll_interval_s: float
    ) -> None:
        super().__init__()
        self.stack = stack
        self.since = since
        self.dagster_conn_id = dagster_conn_id
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger as it is stored."""
        return f"{__name__}.UpgradeVerdictTrigger", {
            "stack": self.stack,
            "since": self.since,
            "dagster_conn_id": self.dagster_conn_id,
            "poll_interval_s": self.poll_interval_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once: when there is a verdict, or Dagster can't be asked."""
        try:
            dagster = await connect(self.dagster_conn_id)
            while True:
                found = await asyncio.to_thread(newest_verdict, dagster, self.stack, self.since)
                if found is not None:
                    yield TriggerEvent({"verdict": found})
                    return
                await asyncio.sleep(self.poll_interval_s)
        except DagsterError as error:
            yield TriggerEvent({"error": str(error)})


def newest_verdict(dagster: Dagster, stack: str | None, since: float) -> dict[str, Any] | None:
    """The newest verdict of an upgrade to a stack after a moment; None where there is none.

    Args:
        stack: the key of the stack after the upgrade, or the beginning of one; any when None.
        since: seconds since the epoch.
    """
    for evaluation in dagster.check_evaluations("published_database", "upgrades_safe"):
        if evaluation["at"] <= since:
            return None
        for row in evaluation["metadata"].get("details", []):
            if stack is None or row["to"].startswith(stack):
                return {**row, "at": evaluation["at"], "run_id": evaluation["run_id"]}
    return None
