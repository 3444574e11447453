# Floodmark on EMR Serverless (docs/engines.md). Not run by us.
# The base image has Spark and its pyspark; `floodmark` without the extra `spark` does not install another.
FROM public.ecr.aws/emr-serverless/spark/emr-spark-8.0.0:latest

USER root
RUN dnf install -y python3.11 python3.11-pip && dnf clean all
RUN python3.11 -m pip install --no-cache-dir floodmark==0.1.0
COPY floodmark.yaml /etc/floodmark/floodmark.yaml
ENV PYSPARK_PYTHON=/usr/bin/python3.11 PYSPARK_DRIVER_PYTHON=/usr/bin/python3.11

# EMR Serverless runs its containers as this user.
USER hadoop:hadoop
