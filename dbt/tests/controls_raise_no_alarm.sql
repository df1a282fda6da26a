-- A detector that sees a fault that is not there.
{{ config(severity='warn') }}
select run_id, measurement_id, planned_fault, detector
from {{ ref('fault_detections') }}
where control and detected
