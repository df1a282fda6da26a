"""Lineage of benchmark jobs: what was restored goes in, what landed and was kept comes out.

What belongs here: a job's data sets. What does not: running it (`api`, `dagster_io.launcher`).

It is told by whoever has a job run, not by the job: one that is killed can tell nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import JobSpec
from resilience_pipelines.lineage.event import DataSet, folder_of
from resilience_pipelines.lineage.span import Facts, span
from resilience_pipelines.warehouse.landing import LandedRun


@contextmanager
def job_lineage(spec: JobSpec, home: Home) -> Iterator[Callable[[LandedRun], LandedRun]]:
    """Tell of a job that the block runs; gives what has to be called with what landed."""
    with span(f"run.{spec.kind.value}", {"worker": spec.worker}) as now:

        def landed(found: LandedRun) -> LandedRun:
            now.find = lambda: _facts(found, home)
            return found

        yield landed


def _facts(landed: LandedRun, home: Home) -> Facts:
    record = landed.record
    tags = {
        "run_id": record.run_id,
        "basis": record.basis.value,
        "stack_key": record.stack_key,
        "hardware": record.stack.hardware_label,
        "software": record.stack.software_label,
        "launcher": record.launcher,
        "platform_commit": record.platform_commit,
    }
    taken = [item.snapshot_id for item in record.snapshots]
    restored = [
        *(trial.snapshot_id for trial in record.compatibility),
        *(restore.snapshot_id for restore in record.fanout),
        *(start.snapshot_id for start in record.startups),
    ]
    return Facts(
        inputs=_images(home, [name for name in restored if name not in taken]),
        outputs=(folder_of(landed.folder), *_images(home, taken)),
        tags={name: value for name, value in tags.items() if value is not None},
    )


def _images(home: Home, snapshots: list[str | None]) -> tuple[DataSet, ...]:
    """The images that this machine's store has: one of a pod lies elsewhere, others were removed.

    Only where an image is and how large it is, for what is in it may be secret.
    """
    folders = (home.snapshots / name for name in dict.fromkeys(filter(None, snapshots)))
    return tuple(folder_of(folder) for folder in folders if folder.is_dir())
