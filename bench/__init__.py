"""Braid against Apache Kafka: the same load, from the same client, on the same machine, in the same run.

`__main__` reads the command line and `run` goes through the rounds. A *server* (`braid`, `kafka`) is a
process that can be started, measured and stopped. A *load* (`load_*`) drives a server and returns figures;
`plan` lists them all. `report` turns the figures into tables of ratios, `plot` into a picture, `headline`
into the one page RESULTS.md; `publish` writes them.
"""
