-- One fault stands for each cause, so that faults and layers are never averaged with one another. A
-- cause without a judged experiment is in the whole and in no average.
with mix as (
    select
        cause,
        fault,
        failures / sum(failures) over () as share
    from {{ ref('failure_mix') }}
),

judged as (
    select
        runs.worker,
        runs.basis,
        runs.stack_key,
        any_value(runs.hardware_label) as hardware_label,
        any_value(runs.software_label) as software_label,
        mix.cause,
        any_value(mix.share) as share,
        count(*) as n,
        count(*) filter (where runs.verdict = 'pass') / count(*) as pass_fraction,
        median(runs.time_to_detect_s) as detect_s,
        median(runs.time_to_recover_s) as recover_s
    from {{ ref('fault_runs') }} as runs
    inner join mix using (fault)
    where not runs.control and runs.verdict in ('pass', 'fail')
    group by runs.worker, runs.basis, runs.stack_key, mix.cause
)

select
    worker,
    basis,
    stack_key,
    any_value(hardware_label) as hardware_label,
    any_value(software_label) as software_label,
    sum(n)::bigint as n,
    list(cause order by share desc, cause) as causes,
    sum(share order by cause) as covered_fraction,
    sum(share * pass_fraction order by cause) / sum(share order by cause) as pass_fraction,
    sum(share * detect_s order by cause)
        / sum(share order by cause) filter (where detect_s is not null) as detect_s,
    sum(share * recover_s order by cause)
        / sum(share order by cause) filter (where recover_s is not null) as recover_s
from judged
group by worker, basis, stack_key
