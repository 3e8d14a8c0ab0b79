"""Wiring of the whole stack: settings, doors of the process, embedded services and the commands over all of it."""
