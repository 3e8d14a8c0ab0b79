"""PostgreSQL and Valkey of our own for one machine, used when no address of a server is given."""
