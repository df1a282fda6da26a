"""The operator of Litmus: runs an engine's experiment, writes a result, stops when told to."""

from __future__ import annotations

from enum import StrEnum

from tests.support.fake_chaos.effects import Effects, age_s
from tests.support.fake_kubernetes.cluster import FakeCluster
from tests.support.fake_kubernetes.store import Object

FINALIZER = "chaosengine.litmuschaos.io/finalizer"
EXPERIMENTS = (
    "pod-delete", "container-kill", "pod-network-latency", "pod-network-loss", "pod-cpu-hog",
)  # fmt: skip


class Fails(StrEnum):
    NOT = "not"
    ABSENT = "absent"
    """No operator runs."""
    FINDING = "finding"
    """The runner does not find the experiment."""
    SILENTLY = "silently"
    """It runs, and nothing has happened."""
    STOPPING = "stopping"
    """The engine does not stop: its finalizer stays."""


class Litmus:
    def __init__(self, cluster: FakeCluster) -> None:
        self.fails = Fails.NOT
        self.verdict = "Pass"
        self.effects = Effects(cluster)
        self.hit: dict[str, list[str]] = {}
        self._store = cluster.store
        cluster.server.groups.add("litmuschaos.io")
        cluster.controllers.custom.update(("chaosengines", "chaosresults"))
        cluster.operators.append(self)
        for name in EXPERIMENTS:
            cluster.store.add("chaosexperiments", {"metadata": {"name": name}})

    def step(self) -> None:
        if self.fails is Fails.ABSENT:
            return
        for item in self._store.all("chaosengines"):
            self._reconcile(item)

    def _reconcile(self, item: Object) -> None:
        metadata, spec = item["metadata"], item["spec"]
        [experiment] = spec["experiments"]
        env = {found["name"]: found["value"] for found in experiment["spec"]["components"]["env"]}
        over = age_s(item) > float(env["TOTAL_CHAOS_DURATION"])
        stop = spec["engineState"] == "stop" or "deletionTimestamp" in metadata
        uid, name = metadata["uid"], metadata["name"]
        if self.fails is Fails.FINDING:
            self._say(name, "completed", "ChaosExperiment Not Found")
        elif self.fails is Fails.STOPPING and uid in self.hit:
            self._say(name, "initialized", "Running")
        elif stop or over:
            for pod in self.hit.get(uid, []):
                self.effects.recover(pod)
            self.hit[uid] = []
            word = "Forcefully Aborted" if stop and not over else "Completed"
            self._say(name, "stopped" if stop and not over else "completed", word)
            self._result(name, experiment["name"], "Stopped" if word[0] == "F" else self.verdict)
        elif uid not in self.hit:
            self._start(uid, spec, experiment["name"], env)
            self._say(name, "initialized", "Running")
            self._result(name, experiment["name"], "Awaited")
        holds = [FINALIZER] if self.fails is Fails.STOPPING or self.hit.get(uid) else []
        self._store.change(
            "chaosengines", name, lambda found: found["metadata"].update(finalizers=holds)
        )

    def _start(self, uid: str, spec: Object, experiment: str, env: dict[str, str]) -> None:
        key, _, value = spec["appinfo"]["applabel"].partition("=")
        pods = [pod for pod in self.effects.pods({key: value}) if pod in env["TARGET_PODS"]]
        self.hit[uid] = pods
        if self.fails is Fails.SILENTLY:
            return
        for pod in pods:
            match experiment:
                case "pod-delete":
                    self.effects.delete(pod)
                case "container-kill":
                    self.effects.kill_container(pod)
                case "pod-network-latency":
                    self.effects.delay(pod, int(env["NETWORK_LATENCY"]) / 1000)
                case "pod-network-loss":
                    self.effects.delay(pod, 0.6)
                case "pod-cpu-hog":
                    self.effects.slow_down(pod)

    def _say(self, name: str, engine: str, experiment: str) -> None:
        status = {"engineStatus": engine, "experiments": [{"status": experiment}]}
        self._store.change("chaosengines", name, lambda found: found.update(status=status))

    def _result(self, engine: str, experiment: str, verdict: str) -> None:
        name = f"{engine}-{experiment}"
        status = {
            "experimentStatus": {
                "phase": "Running" if verdict == "Awaited" else "Completed",
                "verdict": verdict, "probeSuccessPercentage": "100",
            }
        }  # fmt: skip
        if all(item["metadata"]["name"] != name for item in self._store.all("chaosresults")):
            if verdict == "Awaited":
                self._store.add("chaosresults", {"metadata": {"name": name}, "status": status})
            return
        self._store.change("chaosresults", name, lambda found: found.update(status=status))
