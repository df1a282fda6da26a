-- `result` sorts every start into exactly one class; only `right` ones are timed in summaries.
select
    *,
    case
        when outcome = 'unsupported' then 'unsupported'
        when oracle_verdict = 'different' then 'wrong_answer'
        when outcome = 'failed' then 'failed'
        when oracle_verdict = 'equal' then 'right'
        else 'not_checked'
    end as result
from {{ source('raw', 'startups') }}
