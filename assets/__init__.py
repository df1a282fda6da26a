"""The Dagster assets: what exists, what makes it, what checks it, and what sets it off.

What belongs here: thin definitions, each a call of the library in `resilience_pipelines`. What does
not: any work. Everything is put together in `resilience_pipelines.definitions`.

Modules with definitions don't postpone the evaluation of annotations: Dagster reads them.
"""
