"""Traces over OTLP: what OpenTelemetry's variables say, spans of requests, their export.

Needs OpenTelemetry's SDK and exporters (`pip install 'warmpick[otel]'`).
"""
