"""Results: the figures of runs, which policy is best, how sure that is, and why.

A run ends as a `Played`, which the process that ran it reduces to a `Digest`. The digests of all
runs are compared (`compare`), and a comparison is shown as a table, as JSON and as an HTML report.
"""
