-- What was detected was so at some time, and what was not has none. A false alarm of a control arm
-- may lie before its moment, and has no time since then.
select run_id, measurement_id, detector, detected, detected_after_s
from {{ ref('fault_detections') }}
where detected <> (detected_after_s is not null) and not (control and detected)
