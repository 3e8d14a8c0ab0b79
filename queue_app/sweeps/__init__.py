"""The clock's doors: each module here is one sweep, safe to run anywhere, at any time, any number of times at once.

A sweep is a `run_once(now=None, dry_run=False)` that finds what a written rule holds for and lets a service act on it.
"""
