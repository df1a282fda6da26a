"""A span: the events at the beginning and at the end of a run, whatever ends it.

What belongs here: when which event is sent. What does not: what it says (`jobs`, `warehouse`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.lineage.event import DataSet, Event, RunName, State
from resilience_pipelines.lineage.send import LOG, is_on, send

_ERROR_LENGTH = 500


@dataclass(frozen=True)
class Facts:
    """What is known of a run once it has ended.

    Attributes:
        parts: events of runs that are parts of it, in their order.
    """

    inputs: tuple[DataSet, ...] = ()
    outputs: tuple[DataSet, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Event, ...] = ()


@dataclass
class Span:
    """A run that goes on.

    Attributes:
        find: gives the facts, called when the run has ended, however; it may fail.
    """

    run: RunName
    started_at: datetime
    find: Callable[[], Facts] = Facts


@contextmanager
def span(job: str, tags: Mapping[str, str] | None = None) -> Iterator[Span]:
    """Tell of a run that is the block: START now, then COMPLETE, FAIL or ABORT.

    Without a target nothing is told, and `Span.find` is not called.
    """
    now = Span(RunName(job, str(uuid.uuid4())), datetime.now(UTC))
    if not is_on():
        yield now
        return
    send([Event(State.START, now.started_at, now.run, tags=tags or {})])
    try:
        yield now
    except Exception as error:
        _end(now, State.FAIL, tags or {}, _said(error))
        raise
    except BaseException:
        _end(now, State.ABORT, tags or {}, None)
        raise
    _end(now, State.COMPLETE, tags or {}, None)


def _end(now: Span, state: State, tags: Mapping[str, str], error: str | None) -> None:
    ended_at = datetime.now(UTC)
    try:
        facts = now.find()
    except Exception as failure:  # noqa: BLE001 - of whatever kind: it must not fail the run
        LOG.warning("Lineage: what %s read and wrote is not known: %s", now.run.job, failure)
        facts = Facts()
    last = Event(
        state, ended_at, now.run, inputs=facts.inputs, outputs=facts.outputs,
        tags={**tags, **facts.tags}, error=error,
    )  # fmt: skip
    send([*facts.parts, last])


def _said(error: Exception) -> str:
    """The first line of an error of ours, which holds no secret; of another one only its kind."""
    if not isinstance(error, ResilienceError):
        return type(error).__name__
    return error.reason.partition("\n")[0][:_ERROR_LENGTH]
