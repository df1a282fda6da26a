select
    run_id,
    measurement_id,
    name as phase,
    row_number() over (
        partition by run_id, measurement_id
        order by start_s, ordinal
    ) as position_in_snapshot,
    start_s,
    duration_s,
    clock,
    resolution_s
from {{ source('raw', 'snapshot_phases') }}
union all
select
    run_id,
    measurement_id,
    'unaccounted' as phase,
    1 + (
        select count(*)
        from {{ source('raw', 'snapshot_phases') }} as phases
        where
            phases.run_id = snapshots.run_id
            and phases.measurement_id = snapshots.measurement_id
    ) as position_in_snapshot,
    null as start_s,
    unaccounted_s as duration_s,
    'difference' as clock,
    null as resolution_s
from {{ source('raw', 'snapshots') }} as snapshots
where unaccounted_s is not null
