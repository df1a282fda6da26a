{#- The grain of a table: no two rows agree in all of these columns; two nulls do agree. -#}
{% test unique_combination(model, columns) %}
select {{ columns | join(', ') }}, count(*) as rows_of_one
from {{ model }}
group by {{ columns | join(', ') }}
having count(*) > 1
{% endtest %}
