"""The operator of Chaos Mesh: selects, injects, recovers, and says so in conditions and records."""

from __future__ import annotations

from enum import StrEnum

from kubernetes.utils.quantity import parse_quantity

from tests.support.fake_chaos.effects import Effects, age_s
from tests.support.fake_kubernetes.cluster import FakeCluster
from tests.support.fake_kubernetes.store import Object

FINALIZER = "chaos-mesh/records"
PLURALS = ("podchaos", "networkchaos", "stresschaos", "iochaos")
ONE_SHOT = ("pod-kill", "container-kill")


class Fails(StrEnum):
    NOT = "not"
    ABSENT = "absent"
    """No controller runs."""
    SELECTING = "selecting"
    """The selector finds nothing."""
    INJECTING = "injecting"
    """The daemon refuses."""
    SILENTLY = "silently"
    """It says that it injected, and nothing has happened."""
    RECOVERING = "recovering"
    """The daemon can't undo it: the finalizer stays."""


class ChaosMesh:
    def __init__(self, cluster: FakeCluster) -> None:
        self.fails = Fails.NOT
        self.effects = Effects(cluster)
        self.injected: dict[str, list[str]] = {}
        """Pods by the object's id."""
        self._store = cluster.store
        cluster.server.groups.add("chaos-mesh.org")
        cluster.controllers.custom.update(PLURALS)
        cluster.operators.append(self)

    def step(self) -> None:
        if self.fails is Fails.ABSENT:
            return
        for plural in PLURALS:
            for item in self._store.all(plural):
                self._reconcile(plural, item)

    def _reconcile(self, plural: str, item: Object) -> None:
        metadata, spec = item["metadata"], item["spec"]
        deleted = "deletionTimestamp" in metadata
        if not deleted and FINALIZER not in metadata.get("finalizers", []):
            self._change(plural, item, lambda o: o["metadata"].update(finalizers=[FINALIZER]))
        paused = (metadata.get("annotations") or {}).get("experiment.chaos-mesh.org/pause")
        one_shot = spec["action"] in ONE_SHOT if "action" in spec else False
        # A one-shot action is never stopped but by its deletion.
        over = "duration" in spec and age_s(item) > float(spec["duration"].rstrip("s"))
        stop = deleted or (not one_shot and (over or paused == "true"))
        uid = metadata["uid"]
        if stop:
            self._recover(uid)
        elif uid not in self.injected:
            self._inject(uid, spec)
        self._say(plural, item, paused == "true")
        if deleted and not self.injected.get(uid):
            self._change(plural, item, lambda o: o["metadata"].update(finalizers=[]))

    def _inject(self, uid: str, spec: Object) -> None:
        if self.fails is Fails.SELECTING:
            return
        assert spec["selector"]["namespaces"] == ["resilience"]
        assert spec["mode"] == "all"
        pods = self.effects.pods(spec["selector"]["labelSelectors"])
        if not pods or self.fails is Fails.INJECTING:
            return
        self.injected[uid] = pods
        if self.fails is Fails.SILENTLY:
            return
        for pod in pods:
            self._act(pod, spec)

    def _act(self, pod: str, spec: Object) -> None:
        match spec.get("action", "stress"):
            case "pod-kill":
                self.effects.delete(pod)
            case "container-kill":
                assert spec["containerNames"] == ["worker"]
                self.effects.kill_container(pod)
            case "delay":
                assert spec["delay"]["latency"].endswith("ms")
                self.effects.delay(pod, float(spec["delay"]["latency"].removesuffix("ms")) / 1000)
            case "loss":
                self.effects.delay(pod, 0.6)
            case "bandwidth":
                assert spec["bandwidth"].keys() == {"rate", "limit", "buffer"}
                self.effects.delay(pod, 0.7)
            case "partition":
                self.effects.cut(pod)
            case "fault":
                assert (spec["errno"], spec["methods"], spec["percent"]) == (5, ["read"], 100)
                assert spec["path"].startswith(spec["volumePath"])
                self.effects.fail_reading(pod)
            case "stress" if "memory" in spec["stressors"]:
                self._take_memory(pod, spec["stressors"]["memory"])
            case "stress":
                assert spec["stressors"]["cpu"]["workers"] > 0
                self.effects.slow_down(pod)
            case "latency":
                assert spec["volumePath"]
                self.effects.delay_reading(pod, float(spec["delay"].removesuffix("s")))

    def _take_memory(self, pod: str, stressor: Object) -> None:
        """Within its container's limit a stressor does nothing; beyond it the kernel kills."""
        assert stressor["workers"] > 0
        found = self._store.get("pods", pod)["spec"]["containers"][0]
        limit = parse_quantity(found["resources"]["limits"]["memory"])
        if int(stressor["size"].removesuffix("MB")) * 10**6 > limit:
            self.effects.kill_container(pod)

    def _recover(self, uid: str) -> None:
        if self.fails is Fails.RECOVERING:
            return
        for pod in self.injected.get(uid, []):
            self.effects.recover(pod)
        if uid in self.injected:
            self.injected[uid] = []

    def _say(self, plural: str, item: Object, paused: bool) -> None:
        uid = item["metadata"]["uid"]
        known = uid in self.injected
        selected = known or self.fails is Fails.INJECTING
        injected = bool(self.injected.get(uid))
        record: Object = {
            "id": "resilience/pod", "selectorKey": ".",
            "phase": "Injected" if injected else "Not Injected",
            "events": [],
        }  # fmt: skip
        if self.fails is Fails.INJECTING:
            record["events"] = [
                {"type": "Failed", "operation": "Apply", "message": "unable to set tcs for pod"}
            ]
        holds = {
            "Selected": selected,
            "AllInjected": injected,
            "AllRecovered": selected and not injected,
            "Paused": paused,
        }
        status = {
            "conditions": [
                {"type": name, "status": "True" if true else "False"}
                for name, true in holds.items()
            ],
            "experiment": {"containerRecords": [record] if selected else None},
        }
        self._change(plural, item, lambda found: found.update(status=status))

    def _change(self, plural: str, item: Object, edit: object) -> None:
        self._store.change(plural, item["metadata"]["name"], edit)  # type: ignore[arg-type]
