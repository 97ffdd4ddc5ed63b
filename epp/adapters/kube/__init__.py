"""The Kubernetes API: connection and authentication, list and watch, the lease of a leader.

`kubernetes.aio` reads configurations and speaks HTTP; the loops are our own, because no client's
survive what API servers do (ADR 12).
"""
