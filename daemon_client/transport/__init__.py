"""How the daemon talks to the server: plain requests, the control socket, calls over it, and when to try again."""
