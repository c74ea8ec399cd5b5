"""What is of Java: which one runs Spark, its process, and what Spark's interfaces in Java need from us."""
