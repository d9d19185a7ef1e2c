"""The process: sockets, protocols, load shedding, TLS."""
