"""The Kubernetes API: connection and authentication, list and watch, leader election, reviews.

`kubernetes.aio` reads configurations and sends HTTP requests. The list/watch and Lease loops are
our own, because those of the clients do not survive restarts and 410 responses (ADR 12).
"""
