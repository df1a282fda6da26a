select
    phases.run_id,
    phases.measurement_id,
    startups.started_at,
    startups.worker,
    startups.basis,
    startups.stack_key,
    startups.arm,
    startups.variant,
    startups.result,
    phases.phase,
    phases.position_in_start,
    phases.start_s,
    phases.duration_s,
    phases.clock,
    phases.resolution_s
from {{ ref('stg_startup_phases') }} as phases
inner join {{ ref('startup_measurements') }} as startups using (run_id, measurement_id)
