"""The models that learn from responses: speed, lengths, trust."""
