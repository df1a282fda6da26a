-- Where a control fails, the experiment beside it measured something other than its fault.
{{ config(severity='warn') }}
select run_id, measurement_id, planned_fault, verdict, reason_code
from {{ ref('fault_runs') }}
where control and verdict <> 'pass'
