select *
from {{ source('raw', 'change_decisions') }}
qualify row_number() over (partition by change_id order by decided_at desc) = 1
