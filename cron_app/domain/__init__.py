"""Plain Python: what a job is and when its plans are due. Imports no framework."""
