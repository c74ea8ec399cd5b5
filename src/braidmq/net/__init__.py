"""Sockets on one event loop: accept, receive into pooled buffers, answer in order, push back when full."""
