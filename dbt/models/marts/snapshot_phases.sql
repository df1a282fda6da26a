select
    phases.run_id,
    phases.measurement_id,
    snapshots.started_at,
    snapshots.worker,
    snapshots.basis,
    snapshots.stack_key,
    snapshots.outcome,
    phases.phase,
    phases.position_in_snapshot,
    phases.start_s,
    phases.duration_s,
    phases.clock,
    phases.resolution_s
from {{ ref('stg_snapshot_phases') }} as phases
inner join {{ ref('snapshots') }} as snapshots using (run_id, measurement_id)
