"""What changed between stacks, and whether it is more than noise."""
