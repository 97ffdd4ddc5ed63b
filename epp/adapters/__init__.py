"""Adapters of one I/O technology each. They are independent of each other and decide nothing."""
