"""Snapshots of live workers: taking, keeping, checking and restoring them."""
