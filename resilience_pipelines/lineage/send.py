"""Sending events through OpenLineage's client, which finds its target in its own settings.

What belongs here: whether there is a target, OpenLineage's classes, and what happens when an event
can't be sent. What does not: what is sent (`event`).

The client's settings hold secrets, and so may the messages of its errors: only their kind is told.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from resilience_pipelines import __version__
from resilience_pipelines.addresses import ForbiddenAddressError, look_up
from resilience_pipelines.lineage.event import DataSet, Event

DEADLINE_S: Final = 5.0
"""For one event: what it tells of waits no longer."""
LONGEST_S: Final = 30.0
"""For all events that are sent at once."""

LOG: Final = logging.getLogger("resilience_pipelines.lineage")

_PRODUCER: Final = f"urn:resilience-pipelines:{__version__}"
_NAMESPACE_VARIABLE: Final = "OPENLINEAGE_NAMESPACE"
_NAMESPACE: Final = "resilience"
_CONFIG_VARIABLE: Final = "OPENLINEAGE_CONFIG"
_PREFIX: Final = "OPENLINEAGE__TRANSPORT"


class _NoTargetError(Exception):
    """The settings name no target that can be used; the message holds no secret."""


def is_on() -> bool:
    """Whether the settings of OpenLineage name a target."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    named = any(os.environ.get(name) for name in ("OPENLINEAGE_URL", _CONFIG_VARIABLE))
    return named or any(name.startswith(_PREFIX) for name in os.environ)


def send(events: Sequence[Event]) -> None:
    """Send events in their order; what can't be sent in time is told, and nothing is raised."""
    if not events:
        return
    worker = _Sender(events)
    worker.start()
    end, sent = time.monotonic() + LONGEST_S, -1
    while worker.is_alive() and worker.sent > sent and time.monotonic() < end:
        sent = worker.sent
        worker.join(DEADLINE_S)
    late = worker.is_alive()
    worker.given_up.set()
    if late or worker.failure is not None:
        why = "the target answers too late" if late else worker.failure
        lost = events[worker.sent :] or events[-1:]
        LOG.warning(
            "Lineage: %d of %d events, from %s of %s on, may not have been sent: %s. "
            "The run itself is not touched by that.",
            len(lost), len(events), lost[0].state, lost[0].run.job, why,
        )  # fmt: skip


class _Sender(threading.Thread):
    """Sends events in a thread, which ends with its process when the target never answers."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__(name="lineage", daemon=True)
        self.sent = 0
        self.failure: str | None = None
        self.given_up = threading.Event()
        self._events = events

    def run(self) -> None:
        try:
            client = _make_client()
            for event in self._events:
                if self.given_up.is_set():
                    return
                client.emit(_as_openlineage(event))
                self.sent += 1
            client.close(timeout=DEADLINE_S)
        except _NoTargetError as error:
            self.failure = str(error)
        except Exception as error:  # noqa: BLE001 - of whatever kind: it must not fail the run
            self.failure = _kind_of(error)


def _kind_of(error: BaseException) -> str:
    """The kind of an error, with the status of the answer or what the system said of a file."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the target answered with {status}"
    cause = error.__cause__ or error
    said = f" ({cause.strerror})" if isinstance(cause, OSError) and cause.strerror else ""
    return f"{type(error).__name__}{said}"


def _make_client() -> Any:
    if importlib.util.find_spec("openlineage") is None:
        raise _NoTargetError(
            "its client is not installed: pip install 'resilience-pipelines[openlineage]'"
        )
    config = os.environ.get(_CONFIG_VARIABLE)
    if config and not (Path(config).is_file() and os.access(config, os.R_OK)):
        raise _NoTargetError(f"the file that {_CONFIG_VARIABLE} names can't be read")
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import set_producer

    # It would log values of settings that it can't read.
    logging.getLogger("openlineage.client.client").setLevel(logging.ERROR)
    set_producer(_PRODUCER)
    before = set(os.environ)
    try:
        client = OpenLineageClient()
    finally:
        # It copies its key into further variables, which what is started from here would inherit.
        for name in set(os.environ) - before:
            del os.environ[name]
    if client.transport.kind == "console":
        configured = client.config.transport or {}
        if configured.get("type") != "console":
            raise _NoTargetError("the settings of OpenLineage name no transport")
    for transport in (client.transport, *getattr(client.transport, "transports", ())):
        _restrict(transport)
    return client


def _restrict(transport: Any) -> None:
    """Keep HTTP from addresses that nothing here has any business with, and from redirects."""
    if transport.kind != "http":
        return
    host = urlsplit(transport.url).hostname
    try:
        look_up(host or "")
    except ForbiddenAddressError as error:
        raise _NoTargetError(
            "its address is one where clouds keep the credentials of machines, or nobody's"
        ) from error
    except OSError:
        LOG.debug("The host of the target is not known here; a proxy may know it.")
    # A redirected POST would become a GET and lose the event without a word.
    transport.session.max_redirects = 0


def _as_openlineage(event: Event) -> Any:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent
    from openlineage.client.event_v2 import RunState as States
    from openlineage.client.facet_v2 import (
        error_message_run,
        job_type_job,
        parent_run,
        processing_engine_run,
        tags_run,
    )

    run_facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name="resilience_pipelines"
        )
    }
    if event.tags:
        run_facets["tags"] = tags_run.TagsRunFacet(
            tags=[
                tags_run.TagsRunFacetFields(key=key, value=value, source="RESILIENCE_PIPELINES")
                for key, value in event.tags.items()
            ]
        )
    if event.error is not None:
        run_facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=event.error, programmingLanguage="PYTHON"
        )
    if event.parent is not None:
        run_facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=event.parent.run_id),
            job=parent_run.Job(namespace=_namespace(), name=event.parent.job),
        )
    job_type = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="RESILIENCE_PIPELINES", jobType=event.job_type
    )
    return RunEvent(
        eventTime=event.at.isoformat(),
        producer=_PRODUCER,
        run=Run(runId=event.run.run_id, facets=run_facets),
        job=Job(namespace=_namespace(), name=event.run.job, facets={"jobType": job_type}),
        eventType=States(event.state.value),
        inputs=[
            InputDataset(item.namespace, item.name, facets=_facets(item)) for item in event.inputs
        ],
        outputs=[
            OutputDataset(
                item.namespace, item.name, facets=_facets(item), outputFacets=_statistics(item)
            )
            for item in event.outputs
        ],
    )


def _statistics(item: DataSet) -> dict[str, Any]:
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    if item.size_bytes is None:
        return {}
    found = statistics.OutputStatisticsOutputDatasetFacet(
        size=item.size_bytes, fileCount=item.files
    )
    return {"outputStatistics": found}


def _facets(item: DataSet) -> dict[str, Any]:
    from openlineage.client.facet_v2 import schema_dataset

    if not item.columns:
        return {}
    fields = [
        schema_dataset.SchemaDatasetFacetFields(
            name=column.name, type=column.type, description=column.description,
            ordinal_position=number,
        )
        for number, column in enumerate(item.columns, start=1)
    ]  # fmt: skip
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def _namespace() -> str:
    return os.environ.get(_NAMESPACE_VARIABLE) or _NAMESPACE
