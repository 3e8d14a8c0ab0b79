"""The clock's door."""
