"""Data producers: plug-ins that tell others what they know of candidates, and learn it."""
