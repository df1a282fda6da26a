select
    snapshots.run_id,
    snapshots.measurement_id,
    snapshots.started_at,
    {{ run_columns('runs') }},
    snapshots.snapshot_engine,
    snapshots.snapshot_id,
    snapshots.outcome,
    snapshots.reason_code,
    snapshots.detail,
    snapshots.total_s,
    snapshots.unaccounted_s,
    snapshots.image_bytes,
    snapshots.image_files,
    snapshots.sleep_level,
    snapshots.source_serving_after,
    {{ criu_columns('snapshots') }}
from {{ ref('stg_snapshots') }} as snapshots
inner join {{ ref('stg_runs') }} as runs using (run_id)
