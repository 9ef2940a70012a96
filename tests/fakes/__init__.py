"""Doubles at the outermost edge: servers on real sockets that speak the real wire format."""
