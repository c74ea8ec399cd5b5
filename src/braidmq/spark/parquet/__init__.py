"""Topics as Parquet files that the reading tasks write themselves: rows do not pass through the JVM."""
