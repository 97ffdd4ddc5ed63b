"""What is learned from responses: speed, lengths, trust."""
