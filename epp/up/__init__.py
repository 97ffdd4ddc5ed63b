"""`epp up`: Envoy and the picker in front of model servers that are named by their URLs."""
