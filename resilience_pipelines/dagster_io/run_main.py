"""Running the main job from a command line, in one process, with its history in the data home.

What belongs here: one run of `main_job` for this machine, and a line for each thing that happens.
What does not: the job (`assets.jobs`), and what comes out of it (`resilience demo` shows that).

`python -m resilience_pipelines.dagster_io.run_main --home DIR` exits with 0 when every step
succeeded and no check found an error; with 1 when not; with 130 when it was interrupted; else with
the code of the error (`resilience_pipelines.errors`). What was measured before something failed is
loaded and published all the same. The Dagster UI shows the run afterwards:
`RESILIENCE_HOME=DIR DAGSTER_HOME=DIR/dagster dg dev`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TextIO

from rich.console import Console
from rich.markup import escape

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.home import ENVIRONMENT_VARIABLE, Home, open_home
from resilience_pipelines.job_spec import FaultSpec, StartupSpec, parse_spec

if TYPE_CHECKING:
    from dagster import AssetCheckEvaluation, DagsterEvent, DagsterInstance, EventLogEntry

INTERRUPTED: Final = 130
_LOG_NAME: Final = "main_job.log"
_PROGRESS: Final = re.compile(r"[0-9]+/[0-9]+ ")
"""How `job.py` begins a message of its progress."""


MOST_COLD_STARTS: Final = 2


@dataclass(frozen=True)
class Asked:
    """What to run."""

    worker: str
    repeats: int
    fault_repeats: int
    faults: tuple[str, ...] = ()

    def run_config(self) -> dict[str, Any]:
        """The configuration of `main_job`."""
        repeats: dict[str, dict[str, Any]] = {
            "snapshot_images": {},
            # Cold starts take as long as all others together.
            "startup_measurements": {
                "repeats": self.repeats,
                "cold_repeats": min(self.repeats, MOST_COLD_STARTS),
            },
            "fault_runs": {"repeats": self.fault_repeats, "faults": list(self.faults)},
        }
        return {
            "ops": {
                name: {"config": {"worker": self.worker, **fields}}
                for name, fields in repeats.items()
            }
        }


@dataclass
class Outcome:
    """What happened, as `--json` prints it.

    Attributes:
        steps: steps that made something, with their seconds.
        failed_steps: steps that failed, with the reason.
        errors: checks that found an error.
        warnings: checks that warn.
    """

    partition: str
    dagster_run_ids: list[str] = field(default_factory=list)
    success: bool = False
    seconds: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    failed_steps: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def main(argv: list[str] | None = None) -> int:
    """Run the main job; returns the exit code."""
    options = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    with _copy_of(sys.stderr if options.json else sys.stdout) as terminal:
        console = Console(file=terminal, highlight=False, soft_wrap=True)
        try:
            # Bad input is told before seconds of imports.
            for kind, repeats in (("startup", options.repeats), ("fault", options.fault_repeats)):
                parse_spec(json.dumps({"kind": kind, "repeats": repeats}))
            faults = tuple(name for name in options.faults.split(",") if name)
            asked = Asked(options.worker, options.repeats, options.fault_repeats, faults)
            outcome = _run(asked, open_home(options.home), console)
        except ResilienceError as error:
            console.print(f"[bold red]error:[/] {escape(str(error))}")
            return error.exit_code
        except KeyboardInterrupt:
            console.print("interrupted")
            return INTERRUPTED
    if options.json:
        sys.stdout.write(json.dumps(asdict(outcome), indent=2) + "\n")
    return 0 if outcome.success else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m resilience_pipelines.dagster_io.run_main",
        description="Run the main job for this machine, in this process.",
    )
    parser.add_argument("--home", help="data home; RESILIENCE_HOME by default")
    parser.add_argument("--worker", default="reference", help="worker to measure (%(default)s)")
    parser.add_argument(
        "--repeats",
        type=int,
        default=StartupSpec().repeats,
        help="starts of each arm (%(default)s)",
    )
    parser.add_argument(
        "--faults", default="", help="faults to inject, separated by commas; all when not set"
    )
    parser.add_argument(
        "--fault-repeats", type=int, default=FaultSpec().repeats,
        help="experiments of each fault and recovery (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print what happened as JSON; lines go to the errors"
    )
    return parser


def _run(asked: Asked, home: Home, console: Console) -> Outcome:
    begin = time.monotonic()
    # Definitions, and everything that a step starts, look there.
    os.environ[ENVIRONMENT_VARIABLE] = str(home.root)
    os.environ["DAGSTER_HOME"] = str(home.dagster)
    log = home.dagster / _LOG_NAME
    with console.status("loading definitions") if console.is_terminal else nullcontext():
        from resilience_pipelines.context import make_worker, read_machine
        from resilience_pipelines.dagster_io.instance import open_instance
        from resilience_pipelines.dagster_io.stack_partitions import register

        stack = read_machine(make_worker(asked.worker, home), home).stack
        import resilience_pipelines.definitions  # noqa: F401
    with open_instance(home) as instance:
        outcome = Outcome(str(register(instance, stack)))
        console.print(f"[bold]main job[/] for {escape(outcome.partition)}")
        with _Lines(console, outcome) as lines, _output_to(log):
            success = _execute(
                "main_job", home, instance, lines, asked.run_config(), outcome.partition
            )
            if not success and "published_database" not in outcome.steps:
                _execute("refresh_warehouse", home, instance, lines)
    outcome.success = success and not outcome.errors
    outcome.seconds = round(time.monotonic() - begin, 1)
    word = "[bold green]done[/]" if outcome.success else "[bold red]failed[/]"
    console.print(f"{word} in {outcome.seconds:.0f} s; output of the steps: {escape(str(log))}")
    return outcome


def _execute(
    job_name: str,
    home: Home,
    instance: DagsterInstance,
    lines: _Lines,
    run_config: dict[str, Any] | None = None,
    partition: str | None = None,
) -> bool:
    """Run a job in this process; returns whether it succeeded.

    Raises:
        KeyboardInterrupt: it was interrupted, and what it had started was ended.
    """
    from dagster._core.utils import make_new_run_id

    from resilience_pipelines.dagster_io.instance import (
        GPU_POOL,
        WAREHOUSE_POOL,
        owned_run,
        require_free_pool,
    )
    from resilience_pipelines.definitions import defs

    run_id = make_new_run_id()
    with owned_run(home, instance, run_id):
        for pool in (GPU_POOL, WAREHOUSE_POOL):
            require_free_pool(instance, pool)
        lines.outcome.dagster_run_ids.append(run_id)
        instance.add_event_listener(run_id, lines.show)
        result = defs.resolve_job_def(job_name).execute_in_process(
            instance=instance,
            run_id=run_id,
            partition_key=partition,
            run_config=run_config,
            raise_on_error=False,
        )
    if lines.interrupted:
        instance.report_run_canceled(result.dagster_run, "Interrupted.")
        raise KeyboardInterrupt
    return result.success


class _Lines(AbstractContextManager["_Lines"]):
    """A line for each step and each finding; on a terminal also what is going on."""

    def __init__(self, console: Console, outcome: Outcome) -> None:
        self.outcome = outcome
        self.interrupted = False
        self._console = console
        self._status = console.status("starting") if console.is_terminal else None
        self._began: dict[str, float] = {}
        self._made: set[str] = set()

    def __enter__(self) -> _Lines:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, entry: EventLogEntry) -> None:
        """Tell one event of the run."""
        from dagster import DagsterEventType

        step = entry.step_key or ""
        event = entry.dagster_event
        if event is None:
            if _PROGRESS.match(entry.user_message):
                self._show_progress(step, entry.user_message)
            return
        match event.event_type:
            case DagsterEventType.STEP_START:
                self._began[step] = time.monotonic()
                if self._status:
                    self._status.update(escape(step))
            case DagsterEventType.ASSET_MATERIALIZATION:
                self._made.add(step)
            case DagsterEventType.STEP_SUCCESS if step in self._made:
                seconds = round(time.monotonic() - self._began[step], 1)
                self.outcome.steps[step] = seconds
                self._console.print(f"[green]ok[/]       {step}  [dim]{seconds} s[/]")
            case DagsterEventType.STEP_FAILURE:
                reason = _reason(event)
                if "DagsterExecutionInterruptedError" in reason:
                    self.interrupted = True
                    return
                self.outcome.failed_steps[step] = reason
                self._console.print(f"[red]failed[/]   {step}: {escape(reason)}")
            case DagsterEventType.ASSET_CHECK_EVALUATION:
                self._show_check(event.asset_check_evaluation_data)

    def _show_progress(self, step: str, text: str) -> None:
        if self._status:
            self._status.update(f"{step}  {escape(text)}")
        else:
            self._console.print(f"         {step}  {escape(text)}")

    def _show_check(self, check: AssetCheckEvaluation) -> None:
        if check.passed:
            return
        is_error = check.severity.value == "ERROR"
        text = f"{check.asset_key.to_user_string()}: {check.check_name}"
        if check.description:
            text += f": {check.description}"
        (self.outcome.errors if is_error else self.outcome.warnings).append(text)
        word = "[red]error[/]   " if is_error else "[yellow]warning[/] "
        self._console.print(f"{word} {escape(text)}")


def _reason(event: DagsterEvent) -> str:
    data = event.step_failure_data
    if data.user_failure_data and data.user_failure_data.description:
        return data.user_failure_data.description
    error = data.error.cause or data.error if data.error else None
    return " ".join((error.message if error else event.message or "no reason given").split())


@contextmanager
def _copy_of(stream: TextIO) -> Iterator[TextIO]:
    """A stream to the same place, which `_output_to` does not redirect."""
    with os.fdopen(os.dup(stream.fileno()), "w", encoding=stream.encoding) as copy:
        yield copy


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what Dagster, dbt and the libraries write to standard output and error into a file."""
    kept = {number: os.dup(number) for number in (1, 2)}
    with path.open("a") as log:
        for number in kept:
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
