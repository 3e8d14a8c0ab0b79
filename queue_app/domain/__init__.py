"""Plain Python: the rules of the queue as data and pure functions. Imports no framework and touches no database."""
