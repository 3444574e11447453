"""Floodmark as a Glue job (docs/engines.md). Not run by us.

`--floodmark_command` has the command line, `--floodmark_secret` the secret with the environment that the configuration
refers to. Glue's own arguments are not Floodmark's, so they are left out.
"""

import json
import os
import shlex
import sys

import boto3
from awsglue.utils import getResolvedOptions

from floodmark.cli.main import main

options = getResolvedOptions(sys.argv, ["floodmark_command", "floodmark_secret"])
secret = boto3.client("secretsmanager").get_secret_value(SecretId=options["floodmark_secret"])
os.environ.update(json.loads(secret["SecretString"]))
if code := main(shlex.split(options["floodmark_command"])):
    raise SystemExit(code)
