"""Operators: a measurement through Dagster, or a job of the platform directly.

What belongs here: what a task does. What does not: waiting in the triggerer (`triggers`) and
requests to Dagster (`client`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseHook, BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from resilience_pipelines.airflow.client import (
    GOING_ON,
    Dagster,
    Launch,
    endpoint_of,
)
from resilience_pipelines.airflow.triggers import CANCEL_DEADLINE_S, DagsterRunTrigger

TASK_TAG = "airflow/task"
"""Tag of a run: which task it belongs to. A try that finds one still going on takes it over."""

_JOB_END_DEADLINE_S = 60.0
"""After SIGTERM: a job undoes its fault and lands what it found."""


class DagsterMaterializeOperator(BaseOperator):
    """Materializes assets in Dagster, and returns the verdict and the figures as XCom.

    The run is cancelled when the task is ended, cleared, or out of time. A run that a lost try had
    launched and that still goes on is taken over, not launched again.

    The XCom has `verdict` (`pass`, `warn`, `fail`, `no_data`), `figures` (asset -> its metadata),
    `checks`, `partitions`, `errors`, `run_id` and `status`; the key `dagster_run_id` has the id
    from the beginning on.

    Args:
        assets: keys, with `/` between their parts; may be empty where `job` is given.
        partition: its key; of several dimensions a mapping, or keys with `|` between them.
        run_config: Dagster's, e.g. `{"ops": {"startup_measurements": {"config": {"repeats": 3}}}}`.
        job: a job instead of the implicit one of all assets.
        tags: further tags of the run.
        location, repository: where the assets are, when several code locations have them.
        dagster_conn_id: an HTTP connection to Dagster's webserver (docs/airflow.md).
        run_timeout_s: seconds after which the run is cancelled and the task fails.
        poll_interval_s: seconds between two looks at the run.
        fail_on: verdicts that fail the task; after the XCom was pushed.
        deferrable: whether to wait in the triggerer, without a worker slot.
    """

    template_fields: Sequence[str] = (
        "assets", "partition", "run_config", "job", "tags", "dagster_conn_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        assets: Sequence[str] = (),
        partition: str | Mapping[str, str] | None = None,
        run_config: Mapping[str, Any] | None = None,
        job: str | None = None,
        tags: Mapping[str, str] | None = None,
        location: str | None = None,
        repository: str | None = None,
        dagster_conn_id: str = "dagster_default",
        run_timeout_s: float = 6 * 3600.0,
        poll_interval_s: float = 10.0,
        fail_on: Sequence[str] = ("fail", "no_data", "canceled"),
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.assets = assets
        self.partition = partition
        self.run_config = run_config
        self.job = job
        self.tags = tags
        self.location = location
        self.repository = repository
        self.dagster_conn_id = dagster_conn_id
        self.run_timeout_s = run_timeout_s
        self.poll_interval_s = poll_interval_s
        self.fail_on = fail_on
        self.deferrable = deferrable
        self._run_id: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Launch the run, or find that of a lost try, and wait for it."""
        dagster = self._connect()
        run_id = self._run_id = self._launch(dagster, context["ti"])
        context["ti"].xcom_push(key="dagster_run_id", value=run_id)
        deadline = time.time() + self.run_timeout_s
        if self.deferrable:
            self.defer(
                trigger=DagsterRunTrigger(
                    run_id, self.dagster_conn_id, deadline, self.poll_interval_s
                ),
                method_name="execute_complete",
            )
        return self._finish(dagster, self._wait(dagster, run_id, deadline), context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Read what the run made, once the trigger saw it end."""
        if error := event.get("error"):
            # The run may go on: the next try takes it over.
            raise AirflowException(f"Run {event['run_id']} can't be watched: {error}")
        return self._finish(self._connect(), event, context)

    def on_kill(self) -> None:
        """Cancel the run when the task is ended while it holds a worker."""
        if self._run_id is None:
            return
        status = self._connect().terminate(self._run_id, CANCEL_DEADLINE_S)
        self.log.info("The task was ended: run %s is %s", self._run_id, status)

    def _connect(self) -> Dagster:
        return Dagster(endpoint_of(BaseHook.get_connection(self.dagster_conn_id)))

    def _launch(self, dagster: Dagster, ti: Any) -> str:
        task = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"
        if going_on := dagster.runs_with_tag(TASK_TAG, task, GOING_ON):
            self.log.info("Taking over run %s of an earlier try", going_on[0])
            return going_on[0]
        asked = Launch(
            assets=tuple(self.assets),
            job=self.job,
            partition=self.partition,
            run_config=self.run_config or {},
            tags={**(self.tags or {}), TASK_TAG: task},
            location=self.location,
            repository=self.repository,
        )
        run_id = dagster.launch(asked)
        self.log.info("Launched run %s", run_id)
        return run_id

    def _wait(self, dagster: Dagster, run_id: str, deadline: float) -> dict[str, Any]:
        cursor: str | None = None
        while True:
            found = dagster.poll(run_id, cursor)
            cursor = found.cursor
            for message in found.messages:
                self.log.info("%s", message)
            if found.finished:
                return {"run_id": run_id, "status": found.status}
            if time.time() > deadline:
                status = dagster.terminate(run_id, CANCEL_DEADLINE_S)
                return {"run_id": run_id, "status": status, "late": True}
            if not found.more:
                time.sleep(self.poll_interval_s)

    def _finish(
        self, dagster: Dagster, event: Mapping[str, Any], context: Context
    ) -> dict[str, Any]:
        outcome = dagster.outcome(event["run_id"])
        for check in outcome["checks"]:
            if not check["passed"]:
                self.log.warning("%(asset)s: %(check)s: %(description)s", check)
        if event.get("late"):
            raise AirflowFailException(
                f"Run {event['run_id']} did not end within {self.run_timeout_s:g} s and is "
                f"{event['status']} now."
            )
        if outcome["verdict"] in self.fail_on:
            # Those downstream that run all the same want to know why.
            context["ti"].xcom_push(key="return_value", value=outcome)
            why = outcome["errors"] or [
                f"{check['asset']}: {check['check']}: {check['description']}"
                for check in outcome["checks"]
                if not check["passed"]
            ]
            raise AirflowFailException(
                f"Run {outcome['run_id']}: {outcome['verdict']}. {'; '.join(why)}".rstrip()
            )
        return outcome


class ResilienceJobOperator(BaseOperator):
    """Runs a job of the platform directly: as a process here, or as a pod through its launcher.

    The platform may live in another environment: `executable` is the `resilience` command of that.
    The XCom is what `--json` prints, with `exit_code`.

    Args:
        arguments: of the command, e.g. `["run", "startup", "--repeats", "3"]` or `["ci", FILE]`.
        executable: the command, by its name or its path.
        launcher: `local` or `kubernetes`; what the environment says when None.
        home: the data home; what the environment says when None.
        env: variables for the job besides those of the worker.
        run_timeout_s: seconds after which the job is ended and the task fails.
    """

    template_fields: Sequence[str] = ("arguments", "executable", "launcher", "home", "env")

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        executable: str = "resilience",
        launcher: str | None = None,
        home: str | None = None,
        env: Mapping[str, str] | None = None,
        run_timeout_s: float = 6 * 3600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.arguments = arguments
        self.executable = executable
        self.launcher = launcher
        self.home = home
        self.env = env
        self.run_timeout_s = run_timeout_s
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the job to its end; its error stream goes to the log."""
        own = {"RESILIENCE_LAUNCHER": self.launcher, "RESILIENCE_HOME": self.home}
        environment = {
            **os.environ,
            **(self.env or {}),
            **{name: value for name, value in own.items() if value is not None},
        }
        try:
            process = self._process = subprocess.Popen(
                [self.executable, *self.arguments, "--json"], env=environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise AirflowFailException(f"{self.executable} can't be started: {error}") from error
        reader = threading.Thread(target=self._log_errors, args=(process,), daemon=True)
        reader.start()
        late = threading.Event()

        def expire() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(self.run_timeout_s, expire)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            printed = process.stdout.read()
            code = process.wait(_JOB_END_DEADLINE_S)
        finally:
            timer.cancel()
            _end(process)
            reader.join(1.0)
        if late.is_set():
            raise AirflowFailException(f"The job did not end within {self.run_timeout_s:g} s.")
        return self._result(printed, code, context)

    def on_kill(self) -> None:
        """End the job, with every worker that it started, when the task is ended."""
        if self._process is not None:
            _end(self._process)

    def _log_errors(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.info("%s", line.rstrip())

    def _result(self, printed: str, code: int, context: Context) -> dict[str, Any]:
        try:
            found = json.loads(printed)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AirflowFailException(
                f"The job ended with exit code {code} and no result; the log says why."
            )
        found["exit_code"] = code
        if code:
            context["ti"].xcom_push(key="return_value", value=found)
            raise AirflowFailException(f"The job ended with exit code {code}.")
        return found


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, after which a job ends what it started, then SIGKILL for all of its session."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_JOB_END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_JOB_END_DEADLINE_S)
