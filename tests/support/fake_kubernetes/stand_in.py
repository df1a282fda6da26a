"""A job that measures nothing: it talks like `job.py`, lands a made-up record, ends as told.

python -m tests.support.fake_kubernetes.stand_in --home DIR [--progress N] [--hold FILE]
[--error REASON] [--no-landing] [--exit N] [--stack JSON]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from resilience_pipelines import job_environment
from resilience_pipelines.durability import replace_text
from resilience_pipelines.home import open_home
from resilience_pipelines.job_spec import parse_spec
from tests.factories import RecordFactory, land, make_stack


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("--progress", type=int, default=2)
    parser.add_argument("--hold", type=Path)
    parser.add_argument("--error", default="")
    parser.add_argument("--no-landing", action="store_true")
    parser.add_argument("--no-outcome", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--stack", type=json.loads, default={})
    options = parser.parse_args()
    told_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told_to_end.append(number))
    spec = parse_spec(os.environ[job_environment.SPEC])
    for number in range(options.progress):
        _say({"event": "progress", "what": f"step {number}", "done": number, "total": 9})
    print("a library's own words", flush=True)
    while options.hold and not options.hold.exists():
        if told_to_end and not options.stubborn:
            break
        time.sleep(0.02)
    if options.error:
        _finish(
            {"event": "error", "reason": options.error, "mend": "none", "exit_code": 5}, options
        )
        return 5
    run_id = os.environ[job_environment.RUN_ID]
    event: dict[str, object] = {
        "event": "landed",
        "run_id": run_id,
        "folder": "",
        "unsupported": {},
    }
    if not options.no_landing:
        factory = RecordFactory()
        record = factory.record(
            spec.kind, startups=[factory.startup()], stack=make_stack(**options.stack)
        ).model_copy(update={"run_id": run_id, "launcher": os.environ[job_environment.LAUNCHED_BY]})
        event["folder"] = str(land(open_home(options.home).landing, record))
    _finish(event, options)
    return options.exit


def _finish(event: dict[str, object], options: argparse.Namespace) -> None:
    if not options.no_outcome:
        replace_text(Path(os.environ[job_environment.OUTCOME]), json.dumps(event))
    _say(event)


def _say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())
