"""Flow control: which requests wait in the picker, and which of them goes next, and where.

`FlowControl` is what callers use. `Placement` finds where a request goes, by the room of each
endpoint (`Rooms`). `Line` has the requests that wait (`HeldRequest`) in the order in which they go,
`Agenda` has them by when their time is up, and `Refusals` says which may not wait, or no longer.
With llm-d-router's gate, `SaturationGate` says which priorities may send at all.
"""
