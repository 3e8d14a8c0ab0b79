"""The engine of the daemon: asks for work it has room for, runs it, and reports how it ended."""
