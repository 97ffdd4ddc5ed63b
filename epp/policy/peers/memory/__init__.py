"""The memories of the peers' policies: prompts by endpoint, and responses."""
