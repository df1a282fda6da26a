select * from {{ source('raw', 'samples') }}
