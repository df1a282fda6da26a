select *
from {{ source('raw', 'compatibility') }}
