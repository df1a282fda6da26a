"""The entry point of a pod that serves: one worker, until it is ended.

What belongs here: making what the worker needs, and becoming it. What does not: measuring it
(`job`), and starting this program somewhere (`workers.pod`).

`python -m resilience_pipelines.serve --worker reference --home DIR --port N`. It listens on all
addresses, because the API server's proxy comes from outside of the pod.
"""

from __future__ import annotations

import argparse
import os
import sys

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import open_home
from resilience_pipelines.workers.process import worker_environment
from resilience_pipelines.workers.reference_host import ReferenceWorker


def main(arguments: list[str] | None = None) -> int:
    """Become the worker; returns only where that fails, with the exit code."""
    parser = argparse.ArgumentParser(prog="python -m resilience_pipelines.serve")
    parser.add_argument("--worker", choices=["reference"], default="reference")
    parser.add_argument("--home", required=True, help="data home, for weights and caches")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="0.0.0.0", help="IPv4 address (default: all)")  # noqa: S104
    options = parser.parse_args(arguments)
    try:
        home = open_home(options.home)
        worker = ReferenceWorker(home.cache)
        worker.prepare()
    except ResilienceError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    cache = home.cache / "compile-serve"
    cache.mkdir(exist_ok=True)
    plan = worker.plan(options.port, cache)
    argv = [*plan.argv, "--host", options.host]
    # The worker is this pod's process, which its kubelet watches.
    os.execve(argv[0], argv, dict(worker_environment(plan)))  # noqa: S606
    raise AssertionError("execve does not return")


if __name__ == "__main__":
    sys.exit(main())
