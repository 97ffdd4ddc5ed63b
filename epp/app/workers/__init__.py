"""Several processes that serve as one: what starts and follows them, and what each says of all."""
