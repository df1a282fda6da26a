"""The Kubernetes launcher: a job as a batch/v1 Job, its result through the landing volume.

| module | what belongs in it |
| --- | --- |
| `settings` | what an operator sets, and reading it |
| `nodes` | the labels of nodes, what a job asks of them, what a node says of itself |
| `manifest` | the Job that a specification becomes |
| `state` | what the API server says of a job, as values |
| `client` | calls of the API server: time-outs, back-off, watches, logs |
| `failures` | the kinds of failure, and telling them apart |
| `phases` | the phases of a pod, from its conditions and events |
| `follow` | threads that wait for news of a pod and of its log |
| `cleanup` | evidence, deletion, and what killed launchers left |
| `launcher` | a run from its specification to its landing folder |

Works with API servers from 1.20. What an older server doesn't store is found by reading back.
"""
