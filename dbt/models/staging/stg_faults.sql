-- A control goes through the life of a fault without it, so `fault` must not count it as one.
select
    * exclude (fault),
    fault as planned_fault,
    case when control then 'control' else fault end as fault
from {{ source('raw', 'faults') }}
