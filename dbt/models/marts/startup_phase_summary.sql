with by_start as (
    -- A phase may come back within one start; what counts is the time it took of it.
    select
        worker,
        basis,
        stack_key,
        arm,
        phase,
        run_id,
        measurement_id,
        sum(duration_s order by position_in_start) as duration_s,
        min(position_in_start) as position_in_start
    from {{ ref('startup_phases') }}
    where result = 'right' and variant is null
    group by all
),

grouped as (
    select
        worker,
        basis,
        stack_key,
        arm,
        phase,
        count(*) as n,
        list(duration_s) as durations_s,
        median(position_in_start) as order_in_start
    from by_start
    group by worker, basis, stack_key, arm, phase
),

estimated as (
    select *, median_ci(durations_s) as ci
    from grouped
)

select
    worker,
    basis,
    stack_key,
    arm,
    phase,
    n,
    list_median(durations_s) as median_s,
    ci.low as ci_low_s,
    ci.high as ci_high_s,
    order_in_start
from estimated
