"""Files as lines: packed or not, and none of them without an end."""
