"""Dagster's GraphQL API as far as Airflow needs it.

What belongs here: one HTTP client, what it sends, what it reads. What does not: Airflow, except for
the form of its connections; and Dagster itself, which lives elsewhere.
"""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import httpx

GOING_ON: Final = ("QUEUED", "NOT_STARTED", "MANAGED", "STARTING", "STARTED")
IN_PROGRESS: Final = (*GOING_ON, "CANCELING")
ASSET_JOB: Final = "__ASSET_JOB"
"""The job that Dagster makes of all assets, for runs of a selection."""

PAGE: Final = 200
"""Messages of a run that are asked for at once."""

_BUSY: Final = (429, 502, 503, 504)
_LAUNCH_TAG: Final = "airflow/launch"
_RETRY_WAIT_S: Final = 1.0


class DagsterError(Exception):
    """Dagster can't be reached, refused, or answered what can't be used."""


class Connection(Protocol):
    """What is read of an Airflow connection."""

    host: str | None
    schema: str | None
    port: int | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """The field Extra."""


@dataclass(frozen=True)
class Endpoint:
    """Where Dagster's webserver is and how one speaks to it.

    Attributes:
        url: of the GraphQL endpoint.
        headers: sent with each request; secret, as `auth` is.
        verify: whether to check the server's certificate, or the file of the CAs to check it with.
        cert: the client's certificate, with its key as a second file if it has one.
        timeout_s: for each request.
        retries: of a request that can be sent again, after the first.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: tuple[str, str] | None = field(default=None, repr=False)
    verify: bool | str = True
    cert: tuple[str, ...] = ()
    timeout_s: float = 30.0
    retries: int = 3


def endpoint_of(connection: Connection) -> Endpoint:
    """The endpoint that an Airflow connection of the type HTTP describes.

    Extra may have `path` (in front of `/graphql`), `verify`, `cert`, `timeout`, `retries` and
    `headers`; any other text in it is a header, as with Airflow's HTTP provider.

    Raises:
        DagsterError: naming the field that can't be used.
    """
    extra = dict(connection.extra_dejson)
    host = connection.host or ""
    base = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if not base.partition("://")[2]:
        raise DagsterError("The connection has no host: give that of Dagster's webserver.")
    if connection.port:
        base = f"{base.rstrip('/')}:{connection.port}"
    path = str(extra.pop("path", "")).strip("/")
    verify = extra.pop("verify", True)
    cert = extra.pop("cert", ())
    numbers: dict[str, Any] = {}
    for name, least in (("timeout", 0.001), ("retries", 0)):
        value = extra.pop(name, None)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise DagsterError(
                f"Extra {name} = {value!r} of the connection has to be a number of {least} or more."
            )
        numbers[name] = value
    if not isinstance(verify, bool | str):
        raise DagsterError(f"Extra verify = {verify!r} has to be true, false or a file of CAs.")
    headers = extra.pop("headers", {})
    if not isinstance(headers, dict):
        raise DagsterError("Extra headers of the connection has to be an object.")
    headers |= {name: value for name, value in extra.items() if isinstance(value, str)}
    return Endpoint(
        url="/".join(part for part in (base.rstrip("/"), path, "graphql") if part),
        headers={str(name): str(value) for name, value in headers.items()},
        auth=(connection.login, connection.password or "") if connection.login else None,
        verify=verify,
        cert=(cert,) if isinstance(cert, str) else tuple(cert),
        timeout_s=float(numbers.get("timeout", 30.0)),
        retries=int(numbers.get("retries", 3)),
    )


@dataclass(frozen=True)
class Launch:
    """A run to launch: assets, a job, or assets of a job.

    Attributes:
        assets: keys, with `/` between their parts.
        partition: its key; of several dimensions a mapping, or the keys with `|` between them in
            the order of the dimensions' names.
        location, repository: where the assets are, when several code locations have them.
    """

    assets: tuple[str, ...] = ()
    job: str | None = None
    partition: str | Mapping[str, str] | None = None
    run_config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    location: str | None = None
    repository: str | None = None


@dataclass(frozen=True)
class Poll:
    """What is new of a run."""

    status: str
    messages: tuple[str, ...]
    cursor: str
    more: bool

    @property
    def finished(self) -> bool:
        """Whether the run has ended and all of its messages were read."""
        return self.status not in IN_PROGRESS and not self.more


class Dagster:
    """A client of one webserver."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def launch(self, asked: Launch) -> str:
        """Launch a run, exactly once though an answer may get lost; returns its id.

        Raises:
            DagsterError: it could not be launched, with Dagster's reason.
        """
        selector, tags = self._selector(asked)
        mark = uuid.uuid4().hex
        tags = {**tags, **asked.tags, _LAUNCH_TAG: mark}
        variables = {
            "params": {
                "selector": selector,
                "runConfigData": json.dumps(dict(asked.run_config)),
                "executionMetadata": {"tags": _pairs(tags)},
            }
        }
        for attempt in range(self._endpoint.retries + 1):
            try:
                answer = self._ask(_LAUNCH, variables, again=False)["launchRun"]
                break
            except httpx.TransportError as error:
                # It may have arrived all the same.
                if launched := self.runs_with_tag(_LAUNCH_TAG, mark):
                    return launched[0]
                if attempt == self._endpoint.retries:
                    raise DagsterError(f"{self._endpoint.url}: {error!r}") from error
                time.sleep(_RETRY_WAIT_S)
        if answer["__typename"] != "LaunchRunSuccess":
            raise DagsterError(f"Dagster did not launch the run: {_reason(answer)}")
        return str(answer["run"]["runId"])

    def runs_with_tag(
        self, name: str, value: str, statuses: Sequence[str] | None = None
    ) -> list[str]:
        """Ids of the runs that carry a tag, the newest first."""
        where: dict[str, Any] = {"tags": _pairs({name: value})}
        if statuses is not None:
            where["statuses"] = list(statuses)
        answer = self._query(_RUNS, {"filter": where})["runsOrError"]
        if answer["__typename"] != "Runs":
            raise DagsterError(f"Runs can't be listed: {_reason(answer)}")
        return [str(run["runId"]) for run in answer["results"]]

    def poll(self, run_id: str, cursor: str | None) -> Poll:
        """The status of a run and the messages after a cursor."""
        answer = self._query(_POLL, {"run": run_id, "cursor": cursor, "limit": PAGE})
        run, logs = answer["runOrError"], answer["logsForRun"]
        if run["__typename"] != "Run" or logs["__typename"] != "EventConnection":
            raise DagsterError(f"Run {run_id}: {_reason(run)} {_reason(logs)}".rstrip())
        messages = tuple(
            f"{event['stepKey'] or 'run'}: {event['message']}"
            for event in logs["events"]
            if event.get("message") and event["level"] != "DEBUG"
        )
        return Poll(run["status"], messages, logs["cursor"], logs["hasMore"])

    def outcome(self, run_id: str) -> dict[str, Any]:
        """What a run that has ended made and found: see `outcome_of`."""
        cursor: str | None = None
        events: list[dict[str, Any]] = []
        while True:
            answer = self._query(_OUTCOME, {"run": run_id, "cursor": cursor, "limit": PAGE})
            run, logs = answer["runOrError"], answer["logsForRun"]
            if run["__typename"] != "Run" or logs["__typename"] != "EventConnection":
                raise DagsterError(f"Run {run_id}: {_reason(run)} {_reason(logs)}".rstrip())
            events += logs["events"]
            cursor = logs["cursor"]
            if not logs["hasMore"]:
                return outcome_of(run_id, run["status"], events)

    def terminate(self, run_id: str, deadline_s: float) -> str:
        """Cancel a run and wait until it has ended; returns its status.

        Raises:
            DagsterError: it did not end within the deadline, or Dagster refused.
        """
        end = time.monotonic() + deadline_s
        answer = self._query(_TERMINATE, {"run": run_id})["terminateRun"]
        while True:
            status = self.poll(run_id, None).status
            if status not in IN_PROGRESS:
                return status
            if answer["__typename"] != "TerminateRunSuccess":
                raise DagsterError(f"Run {run_id} can't be terminated: {_reason(answer)}")
            if time.monotonic() > end:
                raise DagsterError(f"Run {run_id} is {status} {deadline_s:g} s after its end.")
            time.sleep(_RETRY_WAIT_S)

    def check_evaluations(self, asset: str, check: str, limit: int = 20) -> list[dict[str, Any]]:
        """The newest evaluations of an asset check, the newest first."""
        variables = {"asset": {"path": asset.split("/")}, "check": check, "limit": limit}
        found = self._query(_CHECKS, variables)["assetCheckExecutions"]
        return [
            {
                "run_id": item["runId"],
                "at": item["evaluation"]["timestamp"],
                "passed": item["evaluation"]["success"],
                "description": item["evaluation"]["description"],
                "metadata": _metadata(item["evaluation"]["metadataEntries"]),
            }
            for item in found
            if item["evaluation"] is not None
        ]

    def _selector(self, asked: Launch) -> tuple[dict[str, Any], dict[str, str]]:
        """Where the assets are, and the tags that name the partition."""
        keys = [{"path": key.split("/")} for key in asked.assets]
        place = {"repositoryName": asked.repository, "repositoryLocationName": asked.location}
        dimensions: list[str] = []
        if keys:
            nodes = [
                node
                for node in self._query(_ASSETS, {"keys": keys})["assetNodes"]
                if asked.location in (None, node["repository"]["location"]["name"])
                and asked.repository in (None, node["repository"]["name"])
            ]
            known = {"/".join(node["assetKey"]["path"]) for node in nodes}
            if missing := [key for key in asked.assets if key not in known]:
                raise DagsterError(f"Dagster has no asset {', '.join(missing)}.")
            places = {
                (node["repository"]["name"], node["repository"]["location"]["name"])
                for node in nodes
            }
            if len(places) > 1:
                raise DagsterError(
                    f"The assets are in several places, {sorted(places)}: give location and "
                    "repository, and one run for each."
                )
            place = dict(zip(place, places.pop(), strict=True))
            for node in nodes:
                definition = node["partitionDefinition"] or {"dimensionTypes": []}
                if len(definition["dimensionTypes"]) > 1:
                    dimensions = sorted(item["name"] for item in definition["dimensionTypes"])
        if not all(place.values()):
            raise DagsterError("A job without assets needs its location and repository.")
        selector: dict[str, Any] = {**place, "jobName": asked.job or ASSET_JOB}
        if keys:
            selector |= {"assetSelection": keys}
        return selector, _partition_tags(asked.partition, dimensions)

    def _query(self, text: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(text, variables, again=True)
        except httpx.TransportError as error:
            raise DagsterError(f"{self._endpoint.url}: {error!r}") from error

    def _ask(self, text: str, variables: Mapping[str, Any], *, again: bool) -> dict[str, Any]:
        """One answer. What reads is sent again when it got lost, what launches is not."""
        endpoint = self._endpoint
        attempts = endpoint.retries + 1 if again else 1
        with httpx.Client(
            headers=dict(endpoint.headers), auth=endpoint.auth, verify=_tls(endpoint),
            timeout=endpoint.timeout_s,
        ) as client:  # fmt: skip
            for left in reversed(range(attempts)):
                try:
                    response = client.post(
                        endpoint.url, json={"query": text, "variables": dict(variables)}
                    )
                except httpx.TransportError:
                    if not left:
                        raise
                else:
                    if response.status_code not in _BUSY or not left:
                        return _data(endpoint.url, response)
                time.sleep(_RETRY_WAIT_S)
        raise AssertionError("the last attempt returns or raises")


def outcome_of(run_id: str, status: str, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a run says: one word, its figures, its checks, and why it failed.

    The verdict is `pass`; `warn` where a check warns; `fail` where the run, or a check with the
    severity ERROR, failed; `canceled`; or `no_data` where nothing was made.
    """
    figures: dict[str, dict[str, Any]] = {}
    partitions: dict[str, str] = {}
    checks: list[dict[str, Any]] = []
    errors: list[str] = []
    for event in events:
        match event["__typename"]:
            case "MaterializationEvent" if event["assetKey"]:
                asset = "/".join(event["assetKey"]["path"])
                figures[asset] = _metadata(event["metadataEntries"])
                if event["partition"]:
                    partitions[asset] = event["partition"]
            case "AssetCheckEvaluationEvent":
                found = event["evaluation"]
                checks.append(
                    {
                        "asset": "/".join(found["assetKey"]["path"]),
                        "check": found["checkName"],
                        "passed": found["success"],
                        "severity": found["severity"],
                        "description": found["description"],
                    }
                )
            case "ExecutionStepFailureEvent":
                errors.append(f"{event['stepKey']}: {_root_cause(event['error'])}")
    failed = [check for check in checks if not check["passed"]]
    if status == "CANCELED":
        verdict = "canceled"
    elif status != "SUCCESS" or any(check["severity"] == "ERROR" for check in failed):
        verdict = "fail"
    elif not figures:
        verdict = "no_data"
    else:
        verdict = "warn" if failed else "pass"
    return {
        "run_id": run_id,
        "status": status,
        "verdict": verdict,
        "figures": figures,
        "partitions": partitions,
        "checks": checks,
        "errors": errors,
    }


def _metadata(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries that JSON has a word for; tables as lists of rows."""
    found: dict[str, Any] = {}
    for entry in entries:
        match entry["__typename"]:
            case "FloatMetadataEntry":
                found[entry["label"]] = entry["floatValue"]
            case "IntMetadataEntry":
                found[entry["label"]] = int(entry["intRepr"])
            case "BoolMetadataEntry":
                found[entry["label"]] = entry["boolValue"]
            case "TextMetadataEntry":
                found[entry["label"]] = entry["text"]
            case "PathMetadataEntry":
                found[entry["label"]] = entry["path"]
            case "JsonMetadataEntry":
                found[entry["label"]] = json.loads(entry["jsonString"])
            case "TableMetadataEntry":
                found[entry["label"]] = [json.loads(row) for row in entry["table"]["records"]]
    return found


def _partition_tags(
    partition: str | Mapping[str, str] | None, dimensions: Sequence[str]
) -> dict[str, str]:
    if partition is None:
        return {}
    if isinstance(partition, str):
        if not dimensions:
            return {"dagster/partition": partition}
        parts = partition.split("|")
        if len(parts) != len(dimensions):
            raise DagsterError(
                f"Partition {partition!r} has to name {' and '.join(dimensions)}, with | between."
            )
        partition = dict(zip(dimensions, parts, strict=True))
    if dimensions and sorted(partition) != list(dimensions):
        raise DagsterError(f"Partition {dict(partition)!r} has to name {' and '.join(dimensions)}.")
    tags = {f"dagster/partition/{name}": key for name, key in partition.items()}
    return tags | {"dagster/partition": "|".join(partition[name] for name in sorted(partition))}


def _tls(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if isinstance(endpoint.verify, bool) and not endpoint.cert:
        return endpoint.verify
    try:
        context = ssl.create_default_context(
            cafile=endpoint.verify if isinstance(endpoint.verify, str) else None
        )
        if endpoint.verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if endpoint.cert:
            context.load_cert_chain(*endpoint.cert)
    except (OSError, TypeError) as error:
        raise DagsterError(f"Extra verify or cert of the connection: {error}.") from error
    return context


def _data(url: str, response: httpx.Response) -> dict[str, Any]:
    if response.status_code in (401, 403):
        raise DagsterError(
            f"{url} answers {response.status_code}: check login, password and headers of the "
            "connection."
        )
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict) and answer.get("errors"):
        said = "; ".join(str(item.get("message")) for item in answer["errors"])
        raise DagsterError(f"{url}: {said}")
    if response.status_code != httpx.codes.OK or not isinstance(answer, dict):
        raise DagsterError(f"{url} answers {response.status_code} and no GraphQL.")
    return dict(answer["data"])


def _reason(answer: Mapping[str, Any]) -> str:
    said = [str(answer["message"])] if answer.get("message") else []
    said += [str(item["message"]) for item in answer.get("errors") or []]
    return " ".join(said) or str(answer["__typename"])


def _root_cause(error: Mapping[str, Any] | None) -> str:
    while error and error.get("cause"):
        error = error["cause"]
    return " ".join(str(error["message"]).split()) if error else "no reason given"


def _pairs(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in tags.items()]


_ASSETS: Final = """
query ($keys: [AssetKeyInput!]!) {
  assetNodes(assetKeys: $keys) {
    assetKey { path }
    repository { name location { name } }
    partitionDefinition { dimensionTypes { name } }
  }
}
"""

_LAUNCH: Final = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on PipelineNotFoundError { message }
    ... on InvalidSubsetError { message }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""

_RUNS: Final = """
query ($filter: RunsFilter!) {
  runsOrError(filter: $filter, limit: 10) {
    __typename
    ... on Runs { results { runId } }
    ... on PythonError { message }
  }
}
"""

_RUN_AND_EVENTS: Final = """
query ($run: ID!, $cursor: String, $limit: Int) {
  runOrError(runId: $run) {
    __typename
    ... on Run { status }
    ... on RunNotFoundError { message }
    ... on PythonError { message }
  }
  logsForRun(runId: $run, afterCursor: $cursor, limit: $limit) {
    __typename
    ... on EventConnection {
      cursor
      hasMore
      events { __typename %s }
    }
    ... on RunNotFoundError { message }
    ... on PythonError { message }
  }
}
"""

_POLL: Final = _RUN_AND_EVENTS % "... on MessageEvent { message level stepKey }"

_ENTRIES: Final = """
fragment entries on MetadataEntry {
  __typename
  label
  ... on FloatMetadataEntry { floatValue }
  ... on IntMetadataEntry { intRepr }
  ... on BoolMetadataEntry { boolValue }
  ... on TextMetadataEntry { text }
  ... on PathMetadataEntry { path }
  ... on JsonMetadataEntry { jsonString }
  ... on TableMetadataEntry { table { records } }
}
"""

_OUTCOME: Final = (
    _ENTRIES
    + _RUN_AND_EVENTS
    % """
        ... on MaterializationEvent {
          assetKey { path }
          partition
          metadataEntries { ...entries }
        }
        ... on AssetCheckEvaluationEvent {
          evaluation { assetKey { path } checkName success severity description }
        }
        ... on ExecutionStepFailureEvent {
          stepKey
          error { message cause { message cause { message } } }
        }
      """
)

_TERMINATE: Final = """
mutation ($run: String!) {
  terminateRun(runId: $run, terminatePolicy: SAFE_TERMINATE) {
    __typename
    ... on TerminateRunFailure { message }
    ... on RunNotFoundError { message }
    ... on UnauthorizedError { message }
    ... on PythonError { message }
  }
}
"""

_CHECKS: Final = (
    _ENTRIES
    + """
query ($asset: AssetKeyInput!, $check: String!, $limit: Int!) {
  assetCheckExecutions(assetKey: $asset, checkName: $check, limit: $limit) {
    runId
    evaluation { timestamp success description metadataEntries { ...entries } }
  }
}
"""
)
