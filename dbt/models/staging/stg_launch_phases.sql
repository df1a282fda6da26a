select
    run_id,
    name as phase,
    row_number() over (
        partition by run_id
        order by start_s, ordinal
    ) as position_in_part,
    start_s,
    duration_s,
    clock,
    resolution_s
from {{ source('raw', 'launch_phases') }}
