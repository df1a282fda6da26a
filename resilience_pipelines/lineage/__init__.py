"""Lineage: which run made which data set, told to whoever collects OpenLineage (docs/lineage.md).

What belongs here: the events of jobs, loads and dbt's builds, and sending them. What does not:
measuring, loading and building, which don't know of it; and keeping events, which is the target's.

Off unless a setting of OpenLineage names a target. An event that can't be sent never fails what it
tells of; a warning of the logger `resilience_pipelines.lineage` says so.
"""
