"""Traffic: recorded traces, and workloads that are drawn by published distributions."""
