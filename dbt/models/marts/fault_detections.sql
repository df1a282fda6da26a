select
    detections.run_id,
    detections.measurement_id,
    faults.started_at,
    faults.worker,
    faults.basis,
    faults.stack_key,
    faults.fault,
    faults.planned_fault,
    faults.control,
    faults.layer,
    faults.effect_proved,
    detections.ordinal as position_in_experiment,
    detections.detector,
    detections.expected,
    detections.detected,
    detections.detected_after_s,
    detections.deadline_s,
    detections.within_deadline,
    detections.clock,
    detections.resolution_s,
    detections.detail
from {{ ref('stg_fault_detections') }} as detections
inner join {{ ref('fault_runs') }} as faults using (run_id, measurement_id)
