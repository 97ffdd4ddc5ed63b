"""Results: what runs came to, and which policy is best, how surely and why.

A run ends as a `Played` and is reduced, in the process that ran it, to a `Digest`; digests of all
runs are compared (`compare`), and a comparison is shown as a table, as JSON and as an HTML report.
"""
