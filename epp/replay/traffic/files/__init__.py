"""Files as lines: compressed or not, and never without an end."""
