"""Kafka's wire protocol without any I/O: bytes in, values out, and back.

`schema` turns the tables under `messages/` into codecs; `produce` and `fetch` are the two hot messages
written by hand; `records` is what a log stores; `errors` says what may go wrong. Nothing here opens a
socket or a file.
"""
