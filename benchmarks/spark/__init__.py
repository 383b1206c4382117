"""Fleets on Spark, measured on a cluster whose executors are processes of one machine. Needs Java 17 and pyspark."""
