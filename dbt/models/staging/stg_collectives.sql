select *
from {{ source('raw', 'collectives') }}
