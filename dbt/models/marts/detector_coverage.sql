-- A detector is judged by faults whose effect was proved; a fault that was not there can't be
-- missed.
with grouped as (
    select
        worker,
        basis,
        stack_key,
        planned_fault,
        layer,
        detector,
        count(*) filter (where injected) as n,
        count(*) filter (where injected and expected) as n_expected,
        count(*) filter (where injected and detected) as n_detected,
        count(*) filter (where injected and expected and not detected) as n_missed,
        list(detected_after_s) filter (where injected and detected_after_s is not null)
            as detected_after_s,
        count(*) filter (where control) as n_control,
        count(*) filter (where control and detected) as n_false_alarms
    from (
        select
            *,
            not control and coalesce(effect_proved, false) as injected
        from {{ ref('fault_detections') }}
    )
    group by worker, basis, stack_key, planned_fault, layer, detector
),

estimated as (
    select *, median_ci(detected_after_s) as ci
    from grouped
)

select
    * exclude (detected_after_s, ci),
    list_median(detected_after_s) as median_s,
    ci.low as ci_low_s,
    ci.high as ci_high_s
from estimated
