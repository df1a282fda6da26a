"""Example DAGs, to be copied."""
