-- What was detected was so at some time, and what was not has none.
select run_id, measurement_id, detector, detected, detected_after_s
from {{ ref('fault_detections') }}
where detected <> (detected_after_s is not null)
