"""The asset `releases`: which versions of drivers, engines and tools there are.

What belongs here: the asset and its configuration. What does not: reading feeds and drawing states
(`resilience_pipelines.release_survey`), and when they are read (`schedules`).
"""

import dagster as dg
from pydantic import Field

from assets import groups
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.metadata import table
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.home import Home
from resilience_pipelines.release_survey import refresh_feeds, statuses
from resilience_pipelines.releases.catalogue import FEEDS
from resilience_pipelines.releases.states import ReleaseStatus

SHOWN = 12
"""Releases of each feed that the table shows, the newest first; the rest is counted."""

DESCRIPTION = """\
The releases of NVIDIA's data-centre drivers, CUDA, vLLM, PyTorch, CRIU, Kubernetes and Dynamo, from
each project's own page of releases or a mirror (`RESILIENCE_FEED_<NAME>`), and how far each has
come:

| state | what it says |
| --- | --- |
| `known` | a feed lists it |
| `available` | this machine has it or a cluster offers it, and nothing was measured with it yet |
| `running` | a job measures it for the first time |
| `measured` | there are published results with it |
| `incompatible` | some way to start the worker, or every snapshot, failed each time |

A release of a driver, an engine or CRIU that is newer than what this machine or a measured one has
becomes a software partition at once (sensor `new_releases`), and the suite of a stack that this
machine has and nobody measured is requested once (sensor `unmeasured_stacks`). The mart `releases`
holds the same states.
"""


class ReleasesConfig(dg.Config):
    """What to read."""

    feeds: list[str] = Field(
        default=sorted(FEEDS), description=f"Feeds to read: {', '.join(sorted(FEEDS))}."
    )
    prereleases: bool = Field(default=False, description="Show pre-releases too.")


@dg.asset(
    group_name=groups.MACHINE,
    owners=[groups.OPERATORS],
    kinds={"python"},
    description=DESCRIPTION,
    tags={"cost": "seconds"},
)
def releases(
    context: dg.AssetExecutionContext, config: ReleasesConfig, home: HomeResource
) -> dg.MaterializeResult[None]:
    """Read the feeds, and say what is new."""
    with failures():
        data_home = home.open()
        done, errors = refresh_feeds(data_home, config.feeds)
        found = _states(data_home, config.prereleases)
    new = [f"{feed.feed} {release.version}" for feed in done for release in feed.new]
    for version in new:
        context.log.info(f"new release: {version}")
    failed = {name: str(error) for name, error in errors.items()}
    for name, why in failed.items():
        # One project's page must not keep the others from being read.
        context.log.warning(f"feed {name}: {why}")
    return dg.MaterializeResult(
        metadata={
            "new": dg.MetadataValue.int(len(new)),
            "failed_feeds": dg.MetadataValue.json(failed),
            **{f"releases_of_{name}": _table(states) for name, states in found.items() if states},
        }
    )


def _states(home: Home, prereleases: bool) -> dict[str, list[ReleaseStatus]]:
    found: dict[str, list[ReleaseStatus]] = {name: [] for name in FEEDS}
    for status in statuses(home, prereleases=prereleases):
        found[status.feed].append(status)
    return found


def _table(states: list[ReleaseStatus]) -> dg.TableMetadataValue:
    return table(
        {"version": "string", "state": "string", "released": "string", "branch": "string",
         "withdrawn": "bool"},
        [
            (item.release.version, item.state.value,
             item.release.released.isoformat() if item.release.released else None,
             item.release.branch, item.release.withdrawn)
            for item in states[:SHOWN]
        ],
    )  # fmt: skip
