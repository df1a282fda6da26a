with grouped as (
    select
        worker,
        basis,
        stack_key,
        planned_fault,
        layer,
        recovery,
        count(*) as n,
        {% for verdict in [
            'pass', 'fail', 'inconclusive', 'not_injected', 'not_applicable', 'aborted',
            'rollback_failed'
        ] -%}
        count(*) filter (where verdict = '{{ verdict }}') as n_{{ verdict }},
        {% endfor -%}
        -- Where the effect was not proved, nothing says what was detected or recovered from.
        list(time_to_detect_s) filter (where effect_proved and time_to_detect_s is not null)
            as detect_s,
        list(time_to_recover_s) filter (where effect_proved and time_to_recover_s is not null)
            as recover_s
    from {{ ref('fault_runs') }}
    where not control
    group by worker, basis, stack_key, planned_fault, layer, recovery
),

estimated as (
    select
        *,
        median_ci(detect_s) as detect_ci,
        median_ci(recover_s) as recover_ci
    from grouped
)

select
    * exclude (detect_s, recover_s, detect_ci, recover_ci),
    list_median(detect_s) as detect_median_s,
    detect_ci.low as detect_ci_low_s,
    detect_ci.high as detect_ci_high_s,
    list_median(recover_s) as recover_median_s,
    recover_ci.low as recover_ci_low_s,
    recover_ci.high as recover_ci_high_s
from estimated
