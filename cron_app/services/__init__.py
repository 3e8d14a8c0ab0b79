"""Use cases over the execution table."""
