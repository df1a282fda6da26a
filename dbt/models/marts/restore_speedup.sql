with timed as (
    select
        worker,
        basis,
        stack_key,
        arm,
        count(*) as n,
        median(total_s) as median_s,
        list(total_s) as totals_s
    from {{ ref('startup_measurements') }}
    where result = 'right' and variant is null
    group by worker, basis, stack_key, arm
),

others as (
    select
        arm as versus,
        *
    from timed
    where arm <> 'restore'
    union all
    -- Waking keeps a live process and its memory, so it is no start from nothing.
    select
        'best_other_start' as versus,
        *
    from timed
    where arm in ('cold', 'warm_cache')
    qualify row_number() over (
        partition by worker, basis, stack_key
        order by median_s, arm
    ) = 1
),

compared as (
    select
        others.*,
        restore.n as n_restore,
        restore.median_s as restore_median_s,
        ratio_ci(others.totals_s, restore.totals_s) as ci
    from others
    inner join timed as restore
        on
            others.worker = restore.worker
            and others.basis = restore.basis
            and others.stack_key = restore.stack_key
            and restore.arm = 'restore'
)

select
    worker,
    basis,
    stack_key,
    versus,
    arm as other_arm,
    n_restore,
    n as n_other,
    median_s / nullif(restore_median_s, 0) as speedup,
    ci.low as ci_low,
    ci.high as ci_high
from compared
