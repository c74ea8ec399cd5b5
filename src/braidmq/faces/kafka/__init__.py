"""Kafka's protocol: one handler per verb, over the broker."""
