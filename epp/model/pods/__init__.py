"""The model of each endpoint: its load, its requests, its engine's scheduler."""
