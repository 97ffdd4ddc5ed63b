"""One run: traffic, pickers and engines on one virtual clock."""
