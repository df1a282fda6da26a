select
    runs.run_id,
    runs.kind,
    runs.started_at,
    runs.finished_at,
    {{ run_columns('runs') }},
    runs.model,
    runs.schema_version,
    runs.platform_version,
    runs.platform_commit,
    runs.parameters,
    runs.unsupported,
    runs.data_set,
    runs.run_file_sha256,
    runs.loaded_at
from {{ ref('stg_runs') }} as runs
