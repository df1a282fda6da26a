-- Availability needs to know how often a fault comes: once a day for all of them, so that faults can
-- be compared, and as often as in a published fleet for those that stand for a cause there. An outage
-- that nobody noticed or that did not end has no length, and then there is no availability.
with rates as (
    select
        fault as planned_fault,
        sum(failures / (fleet_gpus * observed_days)) as failures_per_gpu_day
    from {{ ref('failure_mix') }}
    where fault is not null
    group by fault
),

grouped as (
    select
        worker,
        basis,
        stack_key,
        any_value(hardware_label) as hardware_label,
        any_value(software_label) as software_label,
        any_value(strategy) as strategy,
        planned_fault,
        layer,
        recovery,
        count(*) as n,
        count(*) filter (where verdict = 'pass') as n_pass,
        count(time_to_detect_s) as n_detected,
        count(time_to_recover_s) as n_recovered,
        list(time_to_detect_s) filter (where time_to_detect_s is not null) as detect_s,
        list(time_to_recover_s) filter (where time_to_recover_s is not null) as recover_s
    from {{ ref('fault_runs') }}
    where not control and effect_proved and verdict in ('pass', 'fail')
    group by worker, basis, stack_key, planned_fault, layer, recovery
),

timed as (
    select
        * exclude (detect_s, recover_s),
        list_avg(detect_s) as mttd_s,
        mean_ci(detect_s) as detect_ci,
        list_avg(recover_s) as mttr_s,
        mean_ci(recover_s) as recover_ci,
        86400 as day_s,
        n_recovered = n as all_recovered
    from grouped
)

select
    timed.worker,
    timed.basis,
    timed.stack_key,
    timed.hardware_label,
    timed.software_label,
    timed.strategy,
    timed.planned_fault,
    timed.layer,
    timed.recovery,
    timed.n,
    timed.n_pass,
    timed.n_detected,
    timed.mttd_s,
    timed.detect_ci.low as mttd_ci_low_s,
    timed.detect_ci.high as mttd_ci_high_s,
    timed.n_recovered,
    timed.mttr_s,
    timed.recover_ci.low as mttr_ci_low_s,
    timed.recover_ci.high as mttr_ci_high_s,
    {% for name, rate in [
        ('daily_availability_fraction', '1'),
        ('fleet_availability_fraction', 'rates.failures_per_gpu_day'),
    ] -%}
    {% for suffix, downtime in [
        ('', 'timed.mttr_s'), ('_ci_low', 'timed.recover_ci.high'),
        ('_ci_high', 'timed.recover_ci.low')
    ] -%}
    case
        when timed.all_recovered then timed.day_s / (timed.day_s + {{ rate }} * {{ downtime }})
    end as {{ name }}{{ suffix }},
    {% endfor -%}
    {% endfor -%}
    rates.failures_per_gpu_day * 365 as fleet_failures_per_gpu_year
from timed
left join rates using (planned_fault)
