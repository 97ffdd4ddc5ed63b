"""The benchmark `extproc`: what the picker costs behind a real Envoy."""
