"""Release feeds: which versions of drivers, engines and tools there are."""
