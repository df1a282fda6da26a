with grouped as (
    select
        worker,
        basis,
        stack_key,
        arm,
        variant,
        count(*) filter (where result = 'right') as n,
        count(*) filter (where result = 'failed') as n_failed,
        count(*) filter (where result = 'wrong_answer') as n_wrong_answer,
        count(*) filter (where result = 'not_checked') as n_not_checked,
        count(*) filter (where result = 'unsupported') as n_unsupported,
        list(total_s) filter (where result = 'right') as totals_s,
        avg(unaccounted_s / nullif(total_s, 0) order by run_id, measurement_id)
            filter (where result = 'right') as mean_unaccounted_fraction,
        min(started_at) as first_started_at,
        max(started_at) as last_started_at
    from {{ ref('startup_measurements') }}
    group by worker, basis, stack_key, arm, variant
),

estimated as (
    select *, median_ci(totals_s) as ci
    from grouped
)

select
    worker,
    basis,
    stack_key,
    arm,
    variant,
    n,
    n_failed,
    n_wrong_answer,
    n_not_checked,
    n_unsupported,
    list_median(totals_s) as median_s,
    ci.low as ci_low_s,
    ci.high as ci_high_s,
    list_min(totals_s) as min_s,
    list_max(totals_s) as max_s,
    mean_unaccounted_fraction,
    first_started_at,
    last_started_at
from estimated
