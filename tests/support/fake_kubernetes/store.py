"""The store: objects with versions, and the history that watches read."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


class StatusError(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers
        self.body = {
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": message,
        }  # fmt: skip


@dataclass(frozen=True)
class Change:
    version: int
    resource: str
    type: str
    object: Object


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


class Store:
    """All objects of one namespace, by resource and name."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.oldest = 100
        self.history: list[Change] = []
        self._objects: dict[tuple[str, str], Object] = {}

    def add(self, resource: str, given: Object) -> Object:
        with self.changed:
            item = copy.deepcopy(given)
            metadata = item["metadata"]
            if (resource, metadata["name"]) in self._objects:
                raise StatusError(
                    409, "AlreadyExists", f'{resource} "{metadata["name"]}" already exists'
                )
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            self._objects[resource, metadata["name"]] = item
            return self._note(resource, "ADDED", item)

    def get(self, resource: str, name: str) -> Object:
        with self.changed:
            try:
                return copy.deepcopy(self._objects[resource, name])
            except KeyError:
                raise StatusError(404, "NotFound", f'{resource} "{name}" not found') from None

    def all(self, resource: str) -> list[Object]:
        with self.changed:
            return [copy.deepcopy(item) for (kind, _), item in self._objects.items()
                    if kind == resource]  # fmt: skip

    def change(self, resource: str, name: str, edit: Callable[[Object], None]) -> None:
        """Edit an object; one that is gone is left alone."""
        with self.changed:
            item = self._objects.get((resource, name))
            if item is None:
                return
            before = copy.deepcopy(item)
            edit(item)
            if item != before:
                self._note(resource, "MODIFIED", item)
            self._reap(resource, name)

    def delete(self, resource: str, name: str, grace_s: int | None = None) -> Object:
        """Mark as deleted; what has no finalizer and nothing that runs is gone."""
        with self.changed:
            self.get(resource, name)

            def mark(item: Object) -> None:
                item["metadata"].setdefault("deletionTimestamp", now())
                item["metadata"]["deletionGracePeriodSeconds"] = grace_s
                # Without a node nobody has to end it.
                if resource == "pods" and (grace_s == 0 or not item["spec"].get("nodeName")):
                    item["metadata"]["removed"] = True

            item = self.get(resource, name)
            self.change(resource, name, mark)
            return item

    def remove(self, resource: str, name: str) -> None:
        with self.changed:
            item = self._objects.pop((resource, name), None)
            if item is not None:
                self._note(resource, "DELETED", item)

    def compact(self) -> None:
        """Forget the history, as etcd does: a watch from before now gets 410."""
        with self.changed:
            self.history.clear()
            self.oldest = self.version
            self.changed.notify_all()

    def _reap(self, resource: str, name: str) -> None:
        metadata = self._objects[resource, name]["metadata"]
        if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
            return
        # A pod is gone when its kubelet says so, or at once with no grace.
        if resource == "pods" and not metadata.get("removed"):
            return
        self.remove(resource, name)

    def _note(self, resource: str, kind: str, item: Object) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        stored = copy.deepcopy(item)
        self.history.append(Change(self.version, resource, kind, stored))
        self.changed.notify_all()
        return stored
