"""What Kubernetes says, as data: its objects, its watch streams, and what they mean for a pool."""
