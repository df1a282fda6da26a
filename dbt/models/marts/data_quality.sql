with planned as (
    -- What start-up runs were to make of each arm. Of other runs, those of restores at once are in
    -- `waves`, and the rest record whatever they were asked.
    select
        run_id,
        worker,
        basis,
        stack_key,
        arm,
        case
            when arm = 'cold' then coalesce((parameters ->> 'cold_repeats')::bigint, repeats)
            when arm = 'sleep_wake'
                then repeats * greatest(coalesce(json_array_length(parameters, 'sleep_levels'), 1), 1)
            else repeats
        end as starts
    from (
        select
            run_id,
            worker,
            basis,
            stack_key,
            parameters,
            (parameters ->> 'repeats')::bigint as repeats,
            unnest((parameters -> 'arms')::varchar[]) as arm
        from {{ ref('runs') }}
        where kind = 'startup'
    ) as arms
),

-- What runs of restores at once were to make of each width.
waves as (
    select
        run_id,
        worker,
        basis,
        stack_key,
        width,
        format('{} restores at once', width) as subject,
        width * repeats * page_caches as restores,
        unsupported
    from (
        select
            run_id,
            worker,
            basis,
            stack_key,
            unsupported,
            (parameters ->> 'repeats')::bigint as repeats,
            json_array_length(parameters, 'page_caches') as page_caches,
            unnest((parameters -> 'widths')::bigint[]) as width
        from {{ ref('runs') }}
        where kind = 'fanout'
    ) as widths
),

asked as (
    select
        worker,
        basis,
        stack_key,
        'startup' as kind,
        arm as subject,
        case result
            when 'right' then 'ok'
            when 'unsupported' then 'unsupported'
            else 'failed'
        end as status,
        coalesce(reason_code, result) as reason
    from {{ ref('startup_measurements') }}
    union all
    select
        worker,
        basis,
        stack_key,
        'snapshot' as kind,
        'snapshot' as subject,
        outcome as status,
        coalesce(reason_code, outcome) as reason
    from {{ ref('snapshots') }}
    union all
    -- A fault that the system failed is a finding; one that can't be judged is missing data.
    select
        worker,
        basis,
        stack_key,
        'fault' as kind,
        fault as subject,
        case
            when verdict in ('pass', 'fail') then 'ok'
            when verdict = 'not_applicable' then 'unsupported'
            else 'failed'
        end as status,
        coalesce(reason_code, verdict) as reason
    from {{ ref('fault_runs') }}
    union all
    select
        runs.worker,
        runs.basis,
        runs.stack_key,
        runs.kind,
        format('{} restores at once', fanout.width) as subject,
        fanout.outcome as status,
        coalesce(fanout.reason_code, fanout.outcome) as reason
    from {{ ref('stg_fanout') }} as fanout
    inner join {{ ref('runs') }} as runs using (run_id)
    union all
    -- What a run that was stopped did not come to.
    select
        worker,
        basis,
        stack_key,
        'startup' as kind,
        arm as subject,
        'missing' as status,
        'not_made' as reason
    from (
        select
            planned.*,
            planned.starts - (
                select count(*)
                from {{ ref('startup_measurements') }} as made
                where made.run_id = planned.run_id and made.arm = planned.arm
            ) as missing
        from planned
    ) as short
    cross join lateral unnest(range(greatest(short.missing, 0)::bigint))
    union all
    select
        worker,
        basis,
        stack_key,
        'fanout' as kind,
        subject,
        'missing' as status,
        'not_made' as reason
    from (
        select
            waves.*,
            waves.restores - (
                select count(*)
                from {{ ref('stg_fanout') }} as made
                where made.run_id = waves.run_id and made.width = waves.width
            ) as missing
        from waves
        -- What the machine can't do at all, or has no room for, is counted below.
        where not coalesce(
            list_has_any(json_keys(waves.unsupported), ['restore', waves.subject]), false
        )
    ) as short
    cross join lateral unnest(range(greatest(short.missing, 0)::bigint))
    union all
    -- What a run could not do at all and has no measurement of.
    select
        worker,
        basis,
        stack_key,
        kind,
        subject,
        'unsupported' as status,
        'unsupported' as reason
    from (
        select
            run_id,
            worker,
            basis,
            stack_key,
            kind,
            unnest(json_keys(unsupported)) as subject
        from {{ ref('runs') }}
    ) as missing
    where
        -- Counted above, one by one.
        missing.subject <> 'rest of the run'
        and not exists (
            select 1
            from {{ ref('startup_measurements') }} as startups
            where startups.run_id = missing.run_id and startups.arm = missing.subject
        )
        and not exists (
            select 1
            from {{ ref('fault_runs') }} as faults
            where faults.run_id = missing.run_id and faults.planned_fault = missing.subject
        )
),

reasons as (
    select
        worker,
        basis,
        stack_key,
        kind,
        subject,
        string_agg(format('{} ({})', reason, times), ', ' order by times desc, reason) as reasons
    from (
        select worker, basis, stack_key, kind, subject, reason, count(*) as times
        from asked
        where status <> 'ok'
        group by all
    )
    group by all
)

select
    asked.worker,
    asked.basis,
    asked.stack_key,
    asked.kind,
    asked.subject,
    count(*) as asked,
    count(*) filter (where asked.status = 'ok') as ok,
    count(*) filter (where asked.status = 'failed') as failed,
    count(*) filter (where asked.status = 'unsupported') as unsupported,
    count(*) filter (where asked.status = 'missing') as missing,
    any_value(reasons.reasons) as reasons
from asked
left join reasons using (worker, basis, stack_key, kind, subject)
group by all
