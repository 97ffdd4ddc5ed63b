"""Several processes that serve as one: their supervisor, and pages that show all of them."""
