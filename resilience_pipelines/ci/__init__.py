"""`resilience ci`: a suite of jobs from a file, and its verdict in the forms of a CI system."""
