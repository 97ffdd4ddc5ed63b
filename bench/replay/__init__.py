"""Replay: what a run costs, and what recording and a shadow cost a picker."""
