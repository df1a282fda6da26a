"""What happens when something breaks: faults, the experiments that inject them, their verdicts."""
