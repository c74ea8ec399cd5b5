"""Topics, partitions and the work that keeps them: what every face calls, knowing no protocol."""
