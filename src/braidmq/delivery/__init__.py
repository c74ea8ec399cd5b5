"""Delivery of single messages: who holds which, how often it was handed out, what is settled."""
