"""The sockets: daemons at `/api/daemon/ws`, browsers at `/ws`."""
