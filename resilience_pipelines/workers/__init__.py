"""What gets measured: workers, how they are started, held in isolation and talked to.

Kept free of imports on purpose: the reference worker's process runs through this package, and its
import time is part of what is measured.
"""
