-- The pod's phases and those of the starts that it measured, side by side and never added up: each
-- part has clocks of its own, and a pod measures many starts.
select
    launches.run_id,
    'pod' as part,
    '' as measurement_id,
    phases.position_in_part,
    phases.phase,
    launches.worker,
    launches.basis,
    launches.stack_key,
    phases.start_s,
    phases.duration_s,
    phases.clock,
    phases.resolution_s
from {{ ref('launches') }} as launches
inner join {{ ref('stg_launch_phases') }} as phases using (run_id)
union all
select
    starts.run_id,
    'start' as part,
    starts.measurement_id,
    starts.position_in_start as position_in_part,
    starts.phase,
    starts.worker,
    starts.basis,
    starts.stack_key,
    starts.start_s,
    starts.duration_s,
    starts.clock,
    starts.resolution_s
from {{ ref('launches') }} as launches
inner join {{ ref('startup_phases') }} as starts using (run_id)
