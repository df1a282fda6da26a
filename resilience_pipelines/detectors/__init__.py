"""Who notices a fault: detectors that watch a worker, each in a thread with its own clock."""
