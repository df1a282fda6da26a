select *
from {{ source('raw', 'releases') }}
