{#- Columns that every table of measurements takes from its run. -#}
{% macro run_columns(run) -%}
    {%- for name in [
        'worker', 'basis', 'launcher', 'stack_key', 'hardware_key', 'software_key',
        'hardware_label', 'software_label', 'engine', 'engine_version'
    ] -%}
    {{ run }}.{{ name }}{{ ', ' if not loop.last }}
    {%- endfor -%}
{%- endmacro %}

{#- CRIU's own statistics, as `records.CriuStatistics` names them. -#}
{% macro criu_columns(measurement) -%}
    {%- for name in [
        'freezing_s', 'frozen_s', 'memdump_s', 'memwrite_s', 'pages_scanned',
        'pages_skipped_parent', 'pages_written', 'forking_s', 'restore_s', 'pages_compared',
        'pages_skipped_cow', 'pages_restored'
    ] -%}
    {{ measurement }}.criu_{{ name }}{{ ', ' if not loop.last }}
    {%- endfor -%}
{%- endmacro %}

{#- Every dimension of `stack.Stack`. -#}
{% macro stack_dimensions() -%}
    {{ return([
        'gpu_sku', 'gpu_count', 'gpu_memory_mib', 'cpu_model', 'cpu_count', 'memory_mib',
        'storage_kind', 'architecture', 'driver_version', 'cuda_version', 'kernel_version',
        'criu_version', 'snapshot_engine', 'container_runtime', 'kubernetes_version', 'engine',
        'engine_version', 'torch_version', 'nccl_version', 'python_version', 'image_digest',
        'model', 'model_precision'
    ]) }}
{%- endmacro %}
