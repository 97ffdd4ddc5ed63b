"""What observes requests: a recording, a shadow, spans of traces."""
