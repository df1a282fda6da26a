"""Where jobs run: in a process on this machine, or as a Kubernetes job."""
