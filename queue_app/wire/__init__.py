"""Shapes of what comes in and goes out, shared by the HTTP and socket doors and by services."""
