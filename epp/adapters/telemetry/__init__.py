"""Metrics, the operators' HTTP port, and logs."""
