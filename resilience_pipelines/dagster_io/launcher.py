"""Launchers under Dagster: the resource that runs a step's job where the setting says.

What belongs here: starting `job.py` in a Pipes session on this machine, and ending it with the
step, whatever ends the step; and handing a job to a launcher of the library. What does not: what
the job does, and the launchers without Dagster (`launchers`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dagster as dg
from pydantic import Field

from resilience_pipelines import job_environment
from resilience_pipelines.errors import DeadlineError, UnsupportedError
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.launchers.choice import (
    LauncherName,
    kubernetes_launch,
    launcher_name,
)
from resilience_pipelines.launchers.launcher import JobError
from resilience_pipelines.lineage.jobs import job_lineage
from resilience_pipelines.warehouse.landing import LandedRun, read_landing

_END_DEADLINE_S = 30.0
_STDERR_LINES_KEPT = 50


OFFER_TAG: Final = "resilience/offer"
"""Of a run: the key of the cluster's offer that it was requested for."""
IMAGE_TAG: Final = "resilience/image"
"""Of a run: the image for its jobs, one that the launcher's settings name for a release."""
DRIVER_TAG: Final = "resilience/driver"
"""Of a run: the driver of the nodes for its jobs."""


class JobLauncher(dg.ConfigurableResource["JobLauncher"]):
    """Runs benchmark jobs. What an asset asks for; which one it gets is a setting."""

    @property
    def measures_this_machine(self) -> bool:
        """Whether jobs run on the machine that runs the step."""
        return True

    def run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        """Run a job to its end and read what it landed. Its progress goes to the log of the run.

        Raises:
            JobError: the job reported an error, or ended without a result.
            DeadlineError: it took too long and was ended.
            CorruptError: what it landed is not what it wrote.
        """
        raise NotImplementedError


class LocalLauncher(JobLauncher):
    """Runs benchmark jobs on the machine that runs the step."""

    deadline_s: float = Field(
        default=6 * 3600.0,
        gt=0,
        description="Seconds after which a job that has not ended is ended.",
    )

    def run(
        self,
        context: dg.AssetExecutionContext,
        spec: JobSpec,
        home: Home,
    ) -> LandedRun:
        """Run a job to its end and read what it landed. Its progress goes to the log of the run.

        Raises:
            JobError: the job reported an error, or ended without a result.
            DeadlineError: it took longer than `deadline_s` and was ended.
            CorruptError: what it landed is not what it wrote.
        """
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            code, errors, expired = self._run_process(context, spec, home, session)
        # Only a closed session has read every message.
        if expired:
            raise DeadlineError(
                f"The job did not end within {self.deadline_s:g} s and was ended.",
                mend="Ask for fewer repeats, or set deadline_s of the resource `launcher`.",
            )
        return _landed(session.get_custom_messages(), code, errors)

    def _run_process(
        self,
        context: dg.AssetExecutionContext,
        spec: JobSpec,
        home: Home,
        session: dg.PipesSession,
    ) -> tuple[int, str, bool]:
        environment = {
            **os.environ,
            **session.get_bootstrap_env_vars(),
            job_environment.LAUNCHED_BY: "local",
        }
        with _process(_command(home), environment) as process:
            assert process.stdin is not None
            errors = _ErrorStream(context, process)
            try:
                process.stdin.write(spec.model_dump_json())
                process.stdin.close()
            except BrokenPipeError:
                context.log.debug("the job ended before it had read its specification")
            try:
                code, expired = process.wait(self.deadline_s), False
            except subprocess.TimeoutExpired:
                _end(process)
                code, expired = process.wait(_END_DEADLINE_S), True
            return code, errors.last(), expired


class ChosenLauncher(JobLauncher):
    """Runs benchmark jobs where the setting says: the same assets on this machine or a cluster."""

    launcher: str | None = Field(
        default=None,
        description="`local` or `kubernetes`. RESILIENCE_LAUNCHER, else `local`, when not set.",
    )
    kubernetes_settings: str | None = Field(
        default=None,
        description="File with the settings of the Kubernetes launcher (docs/kubernetes.md). "
        "RESILIENCE_KUBERNETES_SETTINGS, else `kubernetes.toml` in the data home, when not set.",
    )
    deadline_s: float = Field(
        default=6 * 3600.0,
        gt=0,
        description="Seconds after which a local job that has not ended is ended; a cluster's jobs "
        "have `deadlines.run_s` of their settings.",
    )

    @property
    def measures_this_machine(self) -> bool:
        """Whether jobs run on the machine that runs the step."""
        return launcher_name(self.launcher) is LauncherName.LOCAL

    def run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        """Run a job to its end and read what it landed. Its progress goes to the log of the run.

        Raises:
            JobError: the job reported an error, ended without a result, or its cluster failed it.
            DeadlineError: it took too long and was ended.
            CorruptError: what it landed is not what it wrote.
            InputError: the settings can't be used, or do not name the run's image.
            UnsupportedError: the run asks for an image or a driver, and jobs run on this machine.
        """
        with job_lineage(spec, home) as landed:
            return landed(self._run(context, spec, home))

    def _run(self, context: dg.AssetExecutionContext, spec: JobSpec, home: Home) -> LandedRun:
        image, driver = (context.run.tags.get(tag) for tag in (IMAGE_TAG, DRIVER_TAG))
        if self.measures_this_machine:
            if image or driver:
                raise UnsupportedError(
                    f"The run asks for {image or f'nodes with driver {driver}'}, and the launcher "
                    "measures this machine as it is.",
                    mend="Set the resource `launcher` to kubernetes, or launch the run without the "
                    f"tags {IMAGE_TAG} and {DRIVER_TAG}.",
                )
            return LocalLauncher(deadline_s=self.deadline_s).run(context, spec, home)
        settings = Path(self.kubernetes_settings) if self.kubernetes_settings else None

        def progress(what: str, done: int, total: int) -> None:
            context.log.info(f"{done}/{total} {what}")

        launch = kubernetes_launch(
            home, settings, context.log.warning, image=image, driver_version=driver
        )
        return read_landing(launch(spec, home, progress).folder)


class _ErrorStream:
    """Copies the job's error stream into the log of the run, and keeps its last lines."""

    def __init__(self, context: dg.AssetExecutionContext, process: subprocess.Popen[str]) -> None:
        self._lines: deque[str] = deque(maxlen=_STDERR_LINES_KEPT)
        self._thread = threading.Thread(target=self._copy, args=(context, process), daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last lines. The stream of an ended process ends too, unless a child kept it."""
        self._thread.join(1.0)
        return "\n".join(self._lines)

    def _copy(self, context: dg.AssetExecutionContext, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._lines.append(line.rstrip("\n"))
            context.log.debug(f"stderr of the job: {self._lines[-1]}")


def _command(home: Home) -> list[str]:
    job = [sys.executable, "-m", "resilience_pipelines.job", "--home", str(home.root)]
    # Dagster may be killed where it has no time to end what it started.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM", *job] if setpriv else job


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """A process that has ended when the block has, also when a cancelled run leaves the block."""
    process = subprocess.Popen(
        command, env=environment, text=True,
        # The events on standard output come through Pipes too.
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, which lets the job end its workers, then SIGKILL, which ends them all the same."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            continue


def _landed(messages: Sequence[Any], code: int, errors: str) -> LandedRun:
    last = messages[-1] if messages else {}
    if last.get("event") == "landed":
        return read_landing(Path(str(last["folder"])))
    if last.get("event") == "error":
        raise JobError(str(last["reason"]), mend=str(last["mend"]), exit_code=code)
    raise JobError(f"The job ended with exit code {code} and no result.\n{errors}".rstrip())
