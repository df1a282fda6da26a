-- Data quality counts every measurement in exactly one class.
select *
from {{ ref('data_quality') }}
where asked <> ok + failed + unsupported + missing or (asked > ok) <> (reasons is not null)
