"""An OpenAI-compatible server that schedules and caches like vLLM v1, at a speed of your choice.

Layers, each ignorant of the ones before it: `cli` > `server` > the endpoint modules > `engine`
> `scheduler` > `pool`, `hashes`. The last three read no clock and do no I/O. Nothing here
imports the endpoint picker: a test that compares both compares two implementations.
"""
