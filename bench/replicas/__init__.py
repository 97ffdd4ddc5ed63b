"""What several replicas decide together, what it costs, and what happens when one is lost."""
