{#- The names of the dimensions in which two rows of `stacks` differ, in their usual order. -#}
{% macro differing_dimensions(one, other) -%}
    list_filter([
        {%- for name in stack_dimensions() %}
        case when {{ one }}.{{ name }} is distinct from {{ other }}.{{ name }} then '{{ name }}' end
        {{- ',' if not loop.last }}
        {%- endfor %}
    ], lambda name : name is not null)
{%- endmacro %}
