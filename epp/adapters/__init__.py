"""One I/O technology each, unaware of each other. Adapters translate; they do not decide."""
