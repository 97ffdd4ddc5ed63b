"""The routing study: every policy over workloads, fleets and loads; `make study`."""
