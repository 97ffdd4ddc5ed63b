"""Flow control on the event loop: requests that wait, and their metrics."""
