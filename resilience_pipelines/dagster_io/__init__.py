"""What Dagster needs of this platform and can't have from the library, which knows no Dagster.

What belongs here: the instance (`instance`), resources (`resources`, `launcher`), results as
metadata (`metadata`, `plots`), the dbt project as Dagster reads it (`dbt_project`), errors
(`failures`), and running the main job from a command line (`run_main`). What does not: assets and
what sets them off (`assets/`), and any work, which the library does.
"""
