select * rename (name as event, ordinal as position_in_experiment)
from {{ source('raw', 'fault_events') }}
