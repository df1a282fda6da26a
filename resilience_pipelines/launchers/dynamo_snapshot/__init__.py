"""NVIDIA Dynamo Snapshot as a snapshot engine: its snapshots and restores of a worker in pods.

| module | what belongs in it |
| --- | --- |
| `contract` | names of its API, and what the status of its objects means |
| `timing_log` | the timings that its node agent logs, as phases |
| `workload` | what runs in a pod of such a worker |
| `manifests` | the Jobs and objects that are made |
| `cluster` | looking at pods, their phases as seen from here, the agent's log, the stack of nodes |
| `engine` | one snapshot, one start |
| `benchmark` | the order of starts, and turning them into records |
| `cleanup` | what killed platforms left |
| `job` | from what a launcher told to the measurements |

The engine's own parts do the work: an operator and an agent on each node. Nothing here needs CRIU.

Everything that is said of it here comes from its repository, github.com/ai-dynamo/snapshot, where
the API that began in ai-dynamo/dynamo (`DynamoCheckpoint`, deploy/snapshot) went on:

| what | file | commit |
| --- | --- | --- |
| fields, conditions, annotations, labels | docs/reference/api.md | 084d620d |
| what a pod to restore into has | docs/reference/restore-pod-contract.md | 0152c9f1 |
| the same in Go; reasons of `nvidia.com/Restored` | api/podcontract/restore_status.go | 28325e7f |
| what a workload does, its control folder | docs/reference/workload-contract.md | 00b0c59d |
| the Job of a SnapshotJob | operator/internal/protocol/source_job.go | 52bb7467 |
| conditions and reasons of a SnapshotJob | api/v1alpha1/snapshotjob_types.go | 02364714 |
| its finalizers | operator/internal/controller/podsnapshot_reconciler.go | 0621e169 |
| the agent's pods: labels, container | charts/snapshot/templates/daemonset.yaml | 00c95302 |
| timings of a restore | agent/internal/executor/restore.go | 32f25f3e |
| timings of a restore, with PageBroker | benchmarks/snapshot_benchmarks/logs.py | bd939ea3 |
| timings of a checkpoint | e2e/tests/test_benchmark.py | 85fb7afb |
"""
