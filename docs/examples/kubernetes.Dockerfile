# Floodmark with Spark on Kubernetes, for the driver and its executors (docs/engines.md). Not run by us.
FROM apache/spark:4.0.2 AS spark

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless openssh-client tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark /opt/spark /opt/spark
COPY --from=spark /opt/entrypoint.sh /opt/entrypoint.sh
# Uses Spark's own pyspark, none from PyPI; py4j from its folder, whatever its version.
RUN pip install --no-cache-dir floodmark==0.1.0 \
    && ln -s /opt/spark/python/lib/py4j-*-src.zip /opt/spark/python/lib/py4j.zip \
    && useradd --system --uid 185 --gid 0 --create-home spark
ENV SPARK_HOME=/opt/spark \
    PYTHONPATH=/opt/spark/python:/opt/spark/python/lib/py4j.zip \
    PYSPARK_PYTHON=/usr/local/bin/python3.11 \
    PYSPARK_DRIVER_PYTHON=/usr/local/bin/python3.11
WORKDIR /home/spark
USER 185
# Executors are started through it; it runs any other command as it is.
ENTRYPOINT ["/opt/entrypoint.sh"]
