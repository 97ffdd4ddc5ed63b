"""Services of the operating system, and helpers that adapters and commands share."""
