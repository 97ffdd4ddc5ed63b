"""Flow control on the event loop: requests that wait, and what operators see of them."""
