"""The observers of requests: a recording, a shadow, spans of traces."""
