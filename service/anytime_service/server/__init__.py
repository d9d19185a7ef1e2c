"""The server process: sockets, protocols, load shedding, TLS."""
