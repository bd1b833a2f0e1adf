"""Multipart uploads to S3 that never ended: their parts cost room and no listing shows them.

obstore has no call for them, so this is boto3 (the extra `gc`); it finds endpoint and credentials in the same variables
and places. A bucket's lifecycle rule AbortIncompleteMultipartUpload does the same without us.
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/mpu-abort-incomplete-mpu-lifecycle-config.html)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from sameshot.errors import Forbidden, StorageError, UsageError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_DENIED = ("AccessDenied", "403", "Forbidden")
_GONE = ("NoSuchUpload", "404")


class Uploads:
    """Those of one bucket below `root` (ends with a slash, or is empty). `aws`: variables that win over the
    environment's."""

    def __init__(self, bucket: str, root: str, url: str, aws: Mapping[str, str] = {}) -> None:
        self._bucket, self._root, self._url = bucket, root, url
        self._client = _client(aws)

    def abort(self, prefix: str, wanted: Callable[[str], bool], before_s: float) -> int:
        """All that are to `wanted` keys (below the root) and began before; how many. Blocks.

        Raises StorageError; those before it are aborted."""
        from botocore.exceptions import BotoCoreError, ClientError

        count = 0
        try:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket, Prefix=self._root + prefix
            )
            for page in pages:
                for each in page.get("Uploads", []):
                    key = each["Key"].removeprefix(self._root)
                    if each["Initiated"].timestamp() < before_s and wanted(key):
                        count += self._abort_one(each["Key"], each["UploadId"])
        except ClientError as error:
            kind = Forbidden if error.response.get("Error", {}).get("Code") in _DENIED else StorageError
            raise kind(f"Aborting old uploads to {self._url} was refused: {error}.") from None
        except BotoCoreError as error:
            raise StorageError(f"Aborting old uploads to {self._url} failed: {error}.") from None
        return count

    def _abort_one(self, key: str, upload_id: str) -> int:
        from botocore.exceptions import ClientError

        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _GONE:
                return 0  # it has ended after all
            raise
        return 1


def _client(aws: Mapping[str, str]) -> Any:
    try:
        import boto3
    except ImportError:
        raise UsageError(
            "Uploads to S3 that never ended can't be asked for without boto3: pip install 'sameshot[gc]', or give the "
            "bucket a lifecycle rule AbortIncompleteMultipartUpload."
        ) from None
    from botocore.config import Config

    said = {**os.environ, **aws}
    # boto3 itself reads neither AWS_REGION nor AWS_ENDPOINT, and would call a bucket of a store of one's own by a name
    # that only Amazon's resolve.
    endpoint = next((said[name] for name in _ENDPOINTS if said.get(name)), None)
    given: dict[str, Any] = {
        "endpoint_url": endpoint,
        "region_name": said.get("AWS_REGION") or said.get("AWS_DEFAULT_REGION"),
        "config": Config(s3={"addressing_style": "path"}) if endpoint else None,
        "aws_access_key_id": aws.get("AWS_ACCESS_KEY_ID"),
        "aws_secret_access_key": aws.get("AWS_SECRET_ACCESS_KEY"),
        "aws_session_token": aws.get("AWS_SESSION_TOKEN"),
    }
    return boto3.client("s3", **{name: value for name, value in given.items() if value})
