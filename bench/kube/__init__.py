"""Benchmark `kube`: following a pool of 1,000 pods in Kubernetes."""
