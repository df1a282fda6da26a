-- Phases in the order of time, with what they leave unaccounted as the last one.
select
    run_id,
    measurement_id,
    name as phase,
    row_number() over (
        partition by run_id, measurement_id
        order by start_s, ordinal
    ) as position_in_start,
    start_s,
    duration_s,
    clock,
    resolution_s
from {{ source('raw', 'startup_phases') }}
union all
select
    run_id,
    measurement_id,
    'unaccounted' as phase,
    1 + (
        select count(*)
        from {{ source('raw', 'startup_phases') }} as phases
        where
            phases.run_id = startups.run_id
            and phases.measurement_id = startups.measurement_id
    ) as position_in_start,
    null as start_s,
    unaccounted_s as duration_s,
    'difference' as clock,
    null as resolution_s
from {{ source('raw', 'startups') }} as startups
where unaccounted_s is not null
