select *
from {{ source('raw', 'fanout') }}
