"""Everything about Java: which one runs Spark, how it starts, and code for Spark's Java interfaces."""
