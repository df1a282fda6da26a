"""How fast a worker comes back: the arms, their phases and the benchmark over them."""
