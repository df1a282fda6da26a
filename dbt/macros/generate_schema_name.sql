{#- Schemas are named as configured: marts in `main`, staging in `staging`, with no prefix. -#}
{% macro generate_schema_name(custom_schema_name, node) -%}
    {{ custom_schema_name | trim if custom_schema_name else target.schema }}
{%- endmacro %}
