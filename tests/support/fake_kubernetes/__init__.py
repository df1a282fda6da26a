"""A stateful fake of the Kubernetes API for tests: what the launcher meets, at will and on time.

| module | what belongs in it |
| --- | --- |
| `store` | objects, their versions, watches' history, finalizers |
| `server` | HTTP on loopback: verbs, watches, logs, permissions, admission, faults of the server |
| `controllers` | the job controller, the garbage collector, the scheduler |
| `kubelet` | nodes that really run a pod's command as a process of this machine |
| `stand_in` | a job that lands a made-up record at once, and ends as it is told |
| `cluster` | all of them together |

It is no cluster: its version says `+fake`, and by that every record made on it is `simulated`.
"""
