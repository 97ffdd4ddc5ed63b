"""What is known of an engine's blocks, by its own hashes; the extension is in `native`."""
