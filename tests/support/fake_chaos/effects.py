"""What both operators do to a pod of the fake cluster."""

from __future__ import annotations

import threading
import time

from tests.support.fake_kubernetes.cluster import FakeCluster
from tests.support.fake_kubernetes.server import Traffic
from tests.support.fake_kubernetes.store import Object


class Effects:
    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._slow: dict[str, threading.Event] = {}

    def pods(self, labels: dict[str, str]) -> list[str]:
        """Running pods with all of these labels."""
        return [
            item["metadata"]["name"]
            for item in self.cluster.store.all("pods")
            if labels.items() <= (item["metadata"].get("labels") or {}).items()
            and "deletionTimestamp" not in item["metadata"]
            and item["status"].get("phase") == "Running"
        ]

    def delete(self, pod: str) -> None:
        self.cluster.store.delete("pods", pod, 0)

    def kill_container(self, pod: str) -> None:
        self.cluster.kubelet.kill(pod)

    def delay(self, pod: str, seconds: float) -> None:
        self.cluster.server.traffic[pod] = Traffic(delay_s=seconds)

    def delay_reading(self, pod: str, seconds: float) -> None:
        self.cluster.server.traffic[pod] = Traffic(waking_s=seconds)

    def fail_reading(self, pod: str) -> None:
        self.cluster.server.traffic[pod] = Traffic(unreadable=True)

    def cut(self, pod: str) -> None:
        self.cluster.server.traffic[pod] = Traffic(cut=True)

    def slow_down(self, pod: str) -> None:
        """Let it run a small part of the time.

        It rests much longer than a detector does between two answers: with rests as long as that,
        each answer would fall into the end of one, and hardly take any longer.
        """
        stop = self._slow[pod] = threading.Event()

        def run() -> None:
            while not stop.is_set():
                self.cluster.kubelet.pause(pod, True)
                time.sleep(1.0)
                self.cluster.kubelet.pause(pod, False)
                time.sleep(0.02)

        threading.Thread(target=run, daemon=True).start()

    def recover(self, pod: str) -> None:
        traffic = self.cluster.server.traffic.pop(pod, None)
        if traffic is not None:
            traffic.cut = False
        if pod in self._slow:
            self._slow.pop(pod).set()


def age_s(item: Object) -> float:
    """Since the object was made, as this process saw it."""
    return time.monotonic() - _SEEN.setdefault(item["metadata"]["uid"], time.monotonic())


_SEEN: dict[str, float] = {}
