"""The dashboard: one self-contained page written from the published DuckDB file.

What belongs here: reading the marts (`rows`, `data`), drawing (`charts`, `figures`,
`fault_figures`, `trend_figure`, `palette`), wording (`words`, `headline`), tables (`tables`,
`raw_tables`) and the page itself (`pages`). What does not: computing results, which the dbt marts
do.
"""

from __future__ import annotations

from resilience_pipelines.dashboards.pages import DashboardReport, write_dashboard

__all__ = ["DashboardReport", "write_dashboard"]
