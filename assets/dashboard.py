"""The asset `dashboard`: the page that shows what was published.

What belongs here: the asset. What does not: the page (`resilience_pipelines.dashboards`).
"""

import dagster as dg

from assets import groups
from assets.warehouse import published_database
from resilience_pipelines.dagster_io.failures import failures
from resilience_pipelines.dagster_io.metadata import page_address, table
from resilience_pipelines.dagster_io.resources import HomeResource
from resilience_pipelines.dashboards import write_dashboard

DESCRIPTION = """\
One HTML page with everything inside it, which works offline: arms by phase, restore against the
best other start, trends over stacks, verdicts of faults, who noticed them, and what is missing.

The address in `page` is for a browser to open; `results` is what it says first of each result.
"""


@dg.asset(
    deps=[published_database],
    group_name=groups.PUBLISHED,
    owners=[groups.ANALYSTS],
    kinds={"python", "html"},
    description=DESCRIPTION,
    tags={"cost": "seconds"},
)
def dashboard(home: HomeResource) -> dg.MaterializeResult[None]:
    """Write the page."""
    with failures():
        data_home = home.open()
        report = write_dashboard(data_home.published, data_home.dashboard / "index.html")
    return dg.MaterializeResult(
        metadata={
            "page": page_address(data_home),
            "results": table(
                {"result": "string", "start_up": "string", "faults": "string"},
                [
                    (
                        f"{item.hardware}, {item.software}, {item.worker}, {item.measured}",
                        item.start_up,
                        item.faults,
                    )
                    for item in report.results
                ],
            ),
            "bytes": dg.MetadataValue.int(report.bytes),
            "sections": dg.MetadataValue.text(", ".join(report.sections)),
        }
    )
