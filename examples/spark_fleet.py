"""A fleet on a cluster: rows from Kafka, a posterior for each sensor, results as Parquet. For spark-submit:

    spark-submit \
        --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0 \
        --conf spark.pyspark.python=/opt/fleet/bin/python \
        --conf spark.sql.streaming.stateStore.providerClass=org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider \
        --conf spark.sql.shuffle.partitions=64 \
        --conf spark.stage.maxConsecutiveAttempts=100 \
        --conf spark.task.maxFailures=100 \
        examples/spark_fleet.py --kafka broker:9092 --topic readings --out s3a://bucket/fleet

/opt/fleet is an environment with `backstream[spark]` on every machine. Without --kafka the rows come from a directory of
JSON files, `--files /data/readings`, which is how to try it on one machine:

    python examples/spark_fleet.py --files /tmp/readings --out /tmp/fleet --once
"""  # noqa: E501

import argparse

import jax
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import backstream as bs

SCHEMA = "sensor_id string, at timestamp, y0 double, y1 double"


def readings(spark, arguments):
    """Rows of all sensors. In Kafka the key of a record is the sensor, so that its rows keep their order."""
    if arguments.kafka is None:
        return spark.readStream.schema(SCHEMA).json(arguments.files)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.kafka)
        .option("subscribe", arguments.topic)
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load()
    )
    return records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka")
    parser.add_argument("--topic", default="readings")
    parser.add_argument("--files")
    parser.add_argument("--out", required=True)
    parser.add_argument("--once", action="store_true", help="stop when everything that is there has been read")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("fleet").getOrCreate()
    model = bs.LinearGaussian.random(2, 2, key=jax.random.key(0))
    results = bs.spark.stream(
        model,
        readings(spark, arguments),
        "sensor_id",
        columns=bs.Columns(time="at"),
        buckets=1024,
        forget_after=0 if arguments.once else 7 * 86400,
    )
    trigger = {"availableNow": True} if arguments.once else {"processingTime": "10 seconds"}
    bs.spark.write(results, f"{arguments.out}/results", f"{arguments.out}/checkpoint", **trigger).awaitTermination()


if __name__ == "__main__":
    main()
