"""What others say, as data. No I/O."""
