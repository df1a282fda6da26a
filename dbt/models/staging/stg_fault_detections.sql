select
    *,
    case
        when detected and deadline_s is not null then detected_after_s <= deadline_s
        when expected and not detected then false
    end as within_deadline
from {{ source('raw', 'fault_detections') }}
